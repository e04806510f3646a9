//! The picture, drawn from the model alone. It needs no more than 80 by 24 characters over a slow
//! line.
//!
//! ```text
//!  title                                filter
//!  rate, total, losses by cause
//!  curve of the rate
//!  protocols              | delay, as a histogram
//!  flows
//!  keys, or the typed filter
//! ```

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style, Stylize as _};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row, Sparkline, Table};

use strait_packet::FlowKey;

use super::model::{Flow, Model, Sort};
use crate::output::process_name;

/// Upper limits of the histogram's bars, with their labels.
const DELAYS: [(u64, &str); 6] = [
    (10_000, "< 10 us"),
    (100_000, "< 100 us"),
    (1_000_000, "< 1 ms"),
    (10_000_000, "< 10 ms"),
    (100_000_000, "< 100 ms"),
    (u64::MAX, "longer"),
];
/// Minimum size of the terminal.
const COLUMNS_MIN: u16 = 60;
const LINES_MIN: u16 = 12;
/// Width of the protocols, and of the curve's scale.
const PROTOCOL_COLUMNS: u16 = 34;
const SCALE_COLUMNS: u16 = 11;
/// Minimum width for the label in the delay's title.
const DELAY_COLUMNS: u16 = 42;
/// Maximum lines of an error message.
const MESSAGE_LINES_MAX: usize = 4;
/// Width of a number of a flow.
const NUMBER: u16 = 11;

const HELP: [(&str, &str); 8] = [
    ("q, Esc", "quit"),
    ("p, space", "pause, resume"),
    ("s", "sort flows by rate, packets, total"),
    ("/", "set a filter, pcap-filter(7); empty for all"),
    ("arrows", "scroll the flows"),
    ("PgUp, PgDn", "scroll them by ten"),
    ("Home", "show the first flow again"),
    ("?", "close this help"),
];

/// Draws the picture.
pub(super) fn draw(frame: &mut Frame<'_>, model: &Model) {
    let area = frame.area();
    if area.width < COLUMNS_MIN || area.height < LINES_MIN {
        let message = format!("too small: {COLUMNS_MIN}x{LINES_MIN} at least");
        return frame.render_widget(Line::from(message), area);
    }
    // A low terminal has no curve, a lower one no protocols and delay either.
    let curve_lines = if area.height < LINES_MIN + 6 { 0 } else { 3 };
    let middle_lines = if area.height < LINES_MIN + 3 { 0 } else { 7 };
    let rows = [1, 2, curve_lines, middle_lines].map(Constraint::Length);
    let key_lines = key_lines(model, area.width.into());
    let last = [Constraint::Min(3), Constraint::Length(key_lines.len() as u16)];
    let [title, rate, curve, middle, flows, keys] =
        Layout::vertical(rows.into_iter().chain(last)).areas(area);
    let [protocols, delay] =
        Layout::horizontal([Constraint::Length(PROTOCOL_COLUMNS), Constraint::Fill(1)]).areas(middle);
    frame.render_widget(title_line(model), title);
    frame.render_widget(rate_lines(model), rate);
    draw_curve(frame, model, curve);
    frame.render_widget(protocol_lines(model, protocols), protocols);
    frame.render_widget(delay_lines(model, delay), delay);
    frame.render_widget(flow_table(model, flows), flows);
    frame.render_widget(Paragraph::new(key_lines), keys);
    if model.help {
        draw_help(frame);
    }
}

fn title_line(model: &Model) -> Line<'_> {
    let mut spans = vec![Span::from(format!("strait top  {}", model.title)).bold()];
    // Ahead of the filter, which may be longer than the line.
    if model.is_down {
        spans.push("  ".into());
        spans.push(Span::from("link is down").red().reversed());
    }
    if !model.filter.is_empty() {
        spans.push(format!("  filter: {}", model.filter).into());
    }
    if model.paused {
        spans.push(Span::from("  PAUSED").reversed());
    }
    Line::from(spans)
}

fn rate_lines(model: &Model) -> Paragraph<'_> {
    let (packets, bits) = model.rate;
    let capture = &model.report.capture;
    let rate = format!(
        "{} packets/s  {} bit/s   {} packets total",
        short(packets),
        short(bits),
        short(capture.delivered as f64)
    );
    let lost: Vec<String> = capture
        .lost
        .named()
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .map(|(cause, count)| format!("{} {}", cause.replace('_', " "), short(count as f64)))
        .collect();
    let lost = if lost.is_empty() {
        Line::from("lost: none")
    } else {
        Line::from(format!("lost: {}", lost.join(", "))).style(Style::new().red().bold())
    };
    Paragraph::new(vec![Line::from(rate), lost])
}

fn draw_curve(frame: &mut Frame<'_>, model: &Model, area: Rect) {
    let [scale, area] =
        Layout::horizontal([Constraint::Length(SCALE_COLUMNS), Constraint::Fill(1)]).areas(area);
    let skipped = model.history.len().saturating_sub(area.width as usize);
    let newest: Vec<u64> = model.history.iter().skip(skipped).copied().collect();
    // The sparkline scales its highest bar to the height of the area.
    let max = newest.iter().max().copied().unwrap_or(0);
    let scale_lines = [format!("max {}", short(max as f64)), "packets/s".into()].map(Line::from);
    frame.render_widget(Paragraph::new(scale_lines.to_vec()), scale);
    frame.render_widget(Sparkline::default().data(newest).style(Style::new().cyan()), area);
}

fn protocol_lines(model: &Model, area: Rect) -> Paragraph<'_> {
    let mut lines = vec![Line::from(format!("{:12} {NUMBER_TITLES}", "protocol")).style(header())];
    for (name, count) in model.protocols.iter().take(area.height.saturating_sub(1).into()) {
        let (packets, bits) = model.per_second(*count);
        lines.push(Line::from(format!("{name:12} {:>9} {:>9}", short(packets), short(bits))));
    }
    Paragraph::new(lines)
}

const NUMBER_TITLES: &str = "packets/s     bit/s";

fn delay_lines(model: &Model, area: Rect) -> Paragraph<'_> {
    let delay = &model.delay;
    let name = if area.width < DELAY_COLUMNS { "" } else { "delay to strait: " };
    let title = format!("{name}p50 {}, p99 {}", duration(delay.p50_ns()), duration(delay.p99_ns()));
    let mut lines = vec![Line::from(title).style(header())];
    let room = usize::from(area.width.saturating_sub(18));
    let mut below = 0;
    for (limit_ns, name) in DELAYS {
        let until = delay.count_up_to(limit_ns);
        let share = if delay.count() == 0 { 0.0 } else { (until - below) as f64 / delay.count() as f64 };
        let bar = "#".repeat((share * room as f64).ceil() as usize);
        lines.push(Line::from(format!("{name:>9} {:>5.1}% {bar}", share * 100.0)));
        below = until;
    }
    Paragraph::new(lines)
}

fn flow_table(model: &Model, area: Rect) -> Table<'_> {
    let titles = [("bit/s", Sort::Bits), ("packets/s", Sort::Packets), ("bytes", Sort::Total)];
    let mut cells = vec![Cell::from(format!("{} flows", model.flow_count()))];
    cells.extend(titles.into_iter().map(|(title, sort)| {
        let title = if sort == model.sort { format!("{title} v") } else { title.to_owned() };
        Cell::from(format!("{title:>10}"))
    }));
    let others = other_flows(model);
    let room = usize::from(area.height.saturating_sub(1)).saturating_sub(others.iter().len());
    let flows = model.sorted_flows(model.scroll, room).into_iter();
    let columns = usize::from(area.width.saturating_sub(3 * (NUMBER + 1)));
    let rows =
        others.into_iter().chain(flows.map(|(key, flow)| flow_row(model, named(model, key, columns), flow)));
    let widths = [
        Constraint::Fill(1),
        Constraint::Length(NUMBER),
        Constraint::Length(NUMBER),
        Constraint::Length(NUMBER),
    ];
    Table::new(rows, widths).header(Row::new(cells).style(header())).column_spacing(1)
}

fn flow_row(model: &Model, name: String, flow: &Flow) -> Row<'static> {
    let (packets, bits) = model.per_second(flow.last);
    let numbers =
        [bits, packets, flow.total.bytes as f64].map(|number| Cell::from(format!("{:>10}", short(number))));
    Row::new([Cell::from(name)].into_iter().chain(numbers))
}

/// Returns the name of a flow in `columns`, and its owner if that is known.
fn named(model: &Model, key: &FlowKey, columns: usize) -> String {
    let Some(owner) = model.owner(key) else { return flow_name(key, columns) };
    let owner = process_name(owner);
    format!("{}  {owner}", flow_name(key, columns.saturating_sub(owner.chars().count() + 2)))
}

/// Returns the name of a flow in `columns`. Addresses are shortened as needed, ports never.
fn flow_name(key: &FlowKey, columns: usize) -> String {
    let whole = key.to_string();
    let Some(excess) = whole.len().checked_sub(columns).filter(|excess| *excess > 0) else { return whole };
    let [source, destination] =
        [key.source, key.destination].map(|end| (end.address.to_string(), end.to_string()));
    let room = (source.0.len() + destination.0.len()).saturating_sub(excess);
    // A short address leaves its columns to the other one.
    let of_source = (room / 2).max(room.saturating_sub(destination.0.len())).min(source.0.len());
    let prefix = whole.strip_suffix(&format!("{} > {}", source.1, destination.1)).unwrap_or_default();
    let end = |(address, end): (String, String), room| shortened(&address, room) + &end[address.len()..];
    format!("{prefix}{} > {}", end(source, of_source), end(destination, room - of_source))
}

/// Shortens an address, which is ASCII, to `columns` by an ellipsis in its middle.
fn shortened(address: &str, columns: usize) -> String {
    if address.len() <= columns {
        return address.to_owned();
    }
    let remaining = columns.saturating_sub(1);
    let (begin, end) = (remaining / 2, address.len() - (remaining - remaining / 2));
    format!("{}\u{2026}{}", &address[..begin], &address[end..])
}

/// Returns the row of the flows above the limit of distinct flows, if there are such flows.
fn other_flows(model: &Model) -> Option<Row<'static>> {
    let other = &model.other_flows;
    let name = format!("other flows, {} packets", short(other.total.packets as f64));
    (other.total.packets > 0).then(|| flow_row(model, name, other))
}

fn key_lines(model: &Model, columns: usize) -> Vec<Line<'_>> {
    if let Some(typed) = &model.typed {
        return vec![Line::from(format!("filter: {typed}_   Enter applies it, Esc cancels"))];
    }
    if let Some(message) = &model.message {
        let lines = wrapped(message, columns).into_iter().take(MESSAGE_LINES_MAX);
        return lines.map(|line| Line::from(line).style(Style::new().red())).collect();
    }
    let keys = Line::from("q quit  p pause  s sort  / filter  arrows scroll  ? help");
    vec![keys.style(Style::new().add_modifier(Modifier::DIM))]
}

/// Wraps `text` at blanks into lines of `columns`. Only a longer word has a longer line.
fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let Some(line) = lines.last_mut() else { break };
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= columns {
            *line += " ";
            *line += word;
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

fn draw_help(frame: &mut Frame<'_>) {
    let area = frame.area();
    let (width, height) = (60.min(area.width), 10.min(area.height));
    let (x, y) = ((area.width - width) / 2, (area.height - height) / 2);
    let area = Rect { x, y, width, height };
    frame.render_widget(Clear, area);
    let lines = HELP.map(|(keys, what)| Line::from(format!(" {keys:10}  {what}")));
    frame.render_widget(Paragraph::new(lines.to_vec()).block(Block::bordered().title("keys")), area);
}

fn header() -> Style {
    Style::new().add_modifier(Modifier::REVERSED)
}

/// Formats a number with three digits and a unit, as in 1.23M.
fn short(value: f64) -> String {
    let (scaled, unit) = match value {
        value if value >= 1e12 => (value / 1e12, "T"),
        value if value >= 1e9 => (value / 1e9, "G"),
        value if value >= 1e6 => (value / 1e6, "M"),
        value if value >= 1e3 => (value / 1e3, "k"),
        value => return format!("{value:.0}"),
    };
    let decimals = if scaled >= 100.0 {
        0
    } else if scaled >= 10.0 {
        1
    } else {
        2
    };
    format!("{scaled:.decimals$}{unit}")
}

fn duration(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.1} s", ns as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use strait_packet::Endpoint;

    use super::*;
    use crate::top::model::tests::model;
    use crate::top::tally::Count;

    fn picture(model: &Model, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, model)).unwrap();
        let buffer = terminal.backend().buffer();
        let lines = buffer.content().chunks(width.into());
        lines.map(|line| line.iter().map(ratatui::buffer::Cell::symbol).collect::<String>() + "\n").collect()
    }

    #[test]
    fn picture_fits_80_by_24() {
        let picture = picture(&model(), 80, 24);
        for words in
            ["strait top  veth0", "2.00k packets/s", "lost: none", "udp", "p99 50", "8 flows", "q quit"]
        {
            assert!(picture.contains(words), "{words}:\n{picture}");
        }
        assert_eq!(picture.lines().filter(|line| line.contains(" > ")).count(), 8, "{picture}");
    }

    #[test]
    fn flows_above_the_limit_have_a_row() {
        let mut model = model();
        assert!(!picture(&model, 80, 24).contains("other flows"));
        model.other_flows.total = Count { packets: 1234, bytes: 56_789 };
        let picture = picture(&model, 80, 15);
        let row = picture.lines().find(|line| line.contains("other flows, 1.23k packets")).unwrap();
        assert!(row.trim_end().ends_with("56.8k"), "{picture}");
    }

    #[test]
    fn title_shows_that_the_link_is_down() {
        let mut model = model();
        assert!(!picture(&model, 80, 24).contains("link is down"));
        (model.is_down, model.filter) = (true, "udp or ".repeat(20));
        assert!(picture(&model, 80, 24).lines().next().unwrap().contains("link is down"));
    }

    #[test]
    fn long_message_is_shown_to_its_end() {
        let mut model = model();
        model.message = Some(format!("{} the end.", "word ".repeat(17)));
        let picture = picture(&model, 80, 24);
        assert!(picture.lines().last().unwrap().trim_end().ends_with("the end."), "{picture}");
        assert_eq!(picture.lines().filter(|line| line.starts_with("word")).count(), 2, "{picture}");
    }

    #[test]
    fn long_flow_name_keeps_its_ports() {
        let end = |address: &str, port| Endpoint { address: address.parse().unwrap(), port };
        let (long, short) = (end("2001:db8:1234:5678:9abc:def0:1234:5678", 20_000), end("fe80::1", 443));
        let key = |source, destination| FlowKey { vlan: Some(4000), protocol: 17, source, destination };
        let both = flow_name(&key(long, Endpoint { port: 65_535, ..long }), 44);
        assert_eq!(both, "vlan 4000, udp 200\u{2026}678.20000 > 200\u{2026}678.65535");
        assert_eq!(flow_name(&key(long, short), 44), "vlan 4000, udp 2001\u{2026}5678.20000 > fe80::1.443");
        assert_eq!(flow_name(&key(short, short), 44), "vlan 4000, udp fe80::1.443 > fe80::1.443");
        for columns in 0..100 {
            let name = flow_name(&key(short, long), columns);
            assert!(name.contains(".443 > ") && name.ends_with(".20000"), "{name}");
            assert!(name.chars().count() <= columns.max(32), "{columns}: {name}");
        }
    }

    #[test]
    fn extreme_terminal_sizes_do_not_panic() {
        for (width, height) in [(1, 1), (20, 5), (300, 100)] {
            let mut model = model();
            model.help = true;
            picture(&model, width, height);
        }
    }

    #[test]
    fn too_small_terminal_shows_the_minimum() {
        for (width, height) in [(59, 24), (80, 11), (40, 10)] {
            assert_eq!(picture(&model(), width, height).trim_end(), "too small: 60x12 at least");
        }
    }

    #[test]
    fn low_terminal_omits_whole_parts() {
        for (height, curve, bars) in [(12, 0, 0), (14, 0, 0), (15, 0, 1), (17, 0, 1), (18, 1, 1)] {
            let picture = picture(&model(), 60, height);
            let lines = |words| picture.lines().filter(|line| line.contains(words)).count();
            assert_eq!((lines("max 2.00k"), lines("longer")), (curve, bars), "{height}\n{picture}");
            assert!(lines(" flows ") == 1 && lines("q quit") == 1 && lines(" > ") > 1, "{picture}");
        }
    }

    #[test]
    fn help_has_two_columns() {
        let mut model = model();
        model.help = true;
        let picture = picture(&model, 60, 24);
        for (keys, what) in HELP {
            let line = picture.lines().find(|line| line.contains(what)).unwrap();
            let at = |words| line.split(words).next().unwrap().chars().count();
            assert_eq!((at(keys), at(what)), (2, 14), "{picture}");
        }
    }

    #[test]
    fn numbers_are_abbreviated() {
        assert_eq!(
            [0.0, 999.0, 1234.0, 56_789.0, 1.5e8, 2e9].map(short),
            ["0", "999", "1.23k", "56.8k", "150M", "2.00G"]
        );
        assert_eq!(
            [500, 1500, 2_500_000, 3_000_000_000].map(duration),
            ["500 ns", "1.5 us", "2.5 ms", "3.0 s"]
        );
    }
}
