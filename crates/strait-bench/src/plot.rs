//! Line plots in SVG, as in D3: one figure against the axis, one line for each contestant, with
//! bars for the spread.

use std::fmt::Write as _;

use strait_ledger::Grouped;

use crate::results::Results;
use crate::stats::Summary;
use crate::table::{Shown, is_bound};

/// Size of a plot without its legend, and margins around its frame, in pixels.
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 56.0;
/// Legend entry below the plot: row height, width of a character, and width of mark and gap.
const ENTRY_HEIGHT: f64 = 20.0;
const CHARACTER_WIDTH: f64 = 7.5;
const ENTRY_MARGIN: f64 = 36.0;
/// Number of colours in the style sheet; lines differ by colour and mark.
const COLOURS: usize = 16;
/// Number of lines without dashes. Further lines are dashed, because more colours are hard to
/// distinguish.
const PLAIN_LINES: usize = 8;
/// The axis is logarithmic if the largest value exceeds the smallest by this factor.
const DECADES_MIN: f64 = 30.0;

/// Scale of the vertical axis.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Scale {
    Linear { most: f64 },
    Logarithmic { least: f64, most: f64 },
}

impl Scale {
    fn of(values: &[Summary]) -> Self {
        let most = values.iter().map(|value| value.max).fold(0.0, f64::max);
        let least =
            values.iter().map(|value| value.min).filter(|&value| value > 0.0).fold(f64::MAX, f64::min);
        if most > least * DECADES_MIN {
            Self::Logarithmic {
                least: 10_f64.powf(least.log10().floor()),
                most: 10_f64.powf(most.log10().ceil()),
            }
        } else {
            Self::Linear { most: step(most) * (most / step(most)).ceil().max(1.0) }
        }
    }

    /// Returns the position of a value: 0 at the bottom, 1 at the top.
    fn place(self, value: f64) -> f64 {
        match self {
            // A capture that takes packets from the host has a negative cost.
            Self::Linear { most } => value.max(0.0) / most,
            Self::Logarithmic { least, most } => (value.max(least) / least).ln() / (most / least).ln(),
        }
    }

    fn ticks(self) -> Vec<f64> {
        match self {
            Self::Linear { most } => {
                let step = step(most);
                (0..=(most / step).round() as u32).map(|i| f64::from(i) * step).collect()
            }
            Self::Logarithmic { least, most } => {
                let decades = (most / least).log10().round() as i32;
                (0..=decades).map(|decade| least * 10_f64.powi(decade)).collect()
            }
        }
    }
}

/// Returns 1, 2 or 5 times a power of ten, so that about five steps reach `most`.
fn step(most: f64) -> f64 {
    let raw = if most > 0.0 { most / 5.0 } else { 1.0 };
    let power = 10_f64.powf(raw.log10().floor());
    let factor = [1.0, 2.0, 5.0].into_iter().find(|factor| factor * power >= raw).unwrap_or(10.0);
    factor * power
}

/// Draws the plot of a figure without a legend; None if it was not measured.
pub(crate) fn svg(results: &Results, shown: &Shown) -> Option<String> {
    let plot = Plot::new(results, shown)?;
    let mut svg = opening(HEIGHT, shown.title);
    plot.draw(&mut svg);
    Some(svg + "</svg>\n")
}

/// Draws the plot of a figure with its legend; None if it was not measured.
pub(crate) fn image_of(results: &Results, shown: &Shown) -> Option<String> {
    let plot = Plot::new(results, shown)?;
    let legend = Legend::new(results, plot.has_bounds());
    let mut svg = opening(HEIGHT + legend.height(), shown.title);
    plot.draw(&mut svg);
    legend.draw(&mut svg, HEIGHT);
    Some(svg + "</svg>\n")
}

/// Draws the legend of the plots of `figures`.
pub(crate) fn legend(results: &Results, figures: &[Shown]) -> String {
    let has_bounds = |shown| Plot::new(results, shown).is_some_and(|plot| plot.has_bounds());
    let legend = Legend::new(results, figures.iter().any(has_bounds));
    let mut svg = opening(legend.height(), "legend");
    legend.draw(&mut svg, 0.0);
    svg + "</svg>\n"
}

fn opening(height: f64, label: &str) -> String {
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\" xmlns=\"http://www.w3.org/2000/svg\">\n",
        escape(label)
    )
}

/// Contestants with their marks, in rows.
struct Legend<'a> {
    contestants: Vec<&'a str>,
    /// True if a mark is hollow: the legend then has an entry for hollow marks.
    has_bounds: bool,
}

impl<'a> Legend<'a> {
    fn new(results: &'a Results, has_bounds: bool) -> Self {
        Self { contestants: results.contestants(), has_bounds }
    }

    /// Returns the positions of the entries, in rows from left to right.
    fn entries(&self) -> Vec<(f64, f64)> {
        let (mut x, mut row) = (LEFT, 0.0);
        let place = |contestant: &&str| {
            let width = contestant.chars().count() as f64 * CHARACTER_WIDTH + ENTRY_MARGIN;
            if x > LEFT && x + width > WIDTH {
                (x, row) = (LEFT, row + 1.0);
            }
            let at = (x, ENTRY_HEIGHT / 2.0 + row * ENTRY_HEIGHT);
            x += width;
            at
        };
        self.contestants.iter().map(place).collect()
    }

    fn height(&self) -> f64 {
        let last = self.entries().last().map_or(0.0, |(_, y)| *y);
        last + ENTRY_HEIGHT * if self.has_bounds { 2.0 } else { 1.0 }
    }

    // Writing to a String cannot fail.
    fn draw(&self, svg: &mut String, top: f64) {
        let entries = self.entries();
        for (i, (contestant, &(x, y))) in self.contestants.iter().zip(&entries).enumerate() {
            let _ = writeln!(
                svg,
                "<g class=\"{}\">{}<text class=\"legend\" x=\"{:.1}\" y=\"{:.1}\">{}</text></g>",
                class(i),
                mark(i, x, top + y - 4.0, ""),
                x + 12.0,
                top + y,
                escape(contestant)
            );
        }
        if self.has_bounds {
            let y = top + entries.last().map_or(0.0, |(_, y)| *y) + ENTRY_HEIGHT;
            let _ = writeln!(
                svg,
                "<g class=\"c0 open\">{}</g><text class=\"legend\" x=\"{:.1}\" y=\"{y:.1}\">{BOUND}</text>",
                mark(0, LEFT, y - 4.0, ""),
                LEFT + 12.0
            );
        }
    }
}

struct Plot<'a> {
    results: &'a Results,
    shown: &'a Shown,
    places: Vec<f64>,
    scale: Scale,
}

impl<'a> Plot<'a> {
    fn new(results: &'a Results, shown: &'a Shown) -> Option<Self> {
        let summary =
            |series: &crate::results::Series| Some(series.summary.get(shown.figure)?.scaled(shown.scale));
        let values: Vec<Summary> = results.series.iter().filter_map(summary).collect();
        if values.is_empty() {
            return None;
        }
        Some(Self { results, shown, places: results.places(), scale: Scale::of(&values) })
    }

    /// Returns the horizontal position. Places have equal distances: each value is about twice, or
    /// ten times, the previous one.
    fn x(&self, place: usize) -> f64 {
        let steps = (self.places.len().max(2) - 1) as f64;
        let margin = 24.0;
        LEFT + margin + place as f64 * (WIDTH - LEFT - RIGHT - 2.0 * margin) / steps
    }

    /// Returns the label of a place: its name, its size in B, KiB, MiB or GiB, or its number.
    fn place_name(&self, place: f64) -> String {
        let is_bytes = self.results.axis.starts_with("bytes") || self.results.axis.ends_with("bytes");
        match () {
            () if !self.results.labels.is_empty() => self.results.place_name(place),
            () if is_bytes => bytes(place),
            () => number(place),
        }
    }

    /// Returns true if a mark is hollow; the legend then has an entry for it.
    fn has_bounds(&self) -> bool {
        let bound = |contestant: &str| {
            self.places.iter().any(|&place| {
                self.results.summary(contestant, place, self.shown.figure).is_some()
                    && is_bound(self.results, contestant, place, self.shown)
            })
        };
        self.results.contestants().into_iter().any(bound)
    }

    /// Draws axes and lines.
    fn draw(&self, svg: &mut String) {
        self.axes(svg);
        for (i, contestant) in self.results.contestants().into_iter().enumerate() {
            self.line(svg, i, contestant);
        }
    }

    fn y(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - self.scale.place(value) * (HEIGHT - TOP - BOTTOM)
    }

    // Writing to a String cannot fail.
    fn axes(&self, svg: &mut String) {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        for tick in self.scale.ticks() {
            let y = self.y(tick);
            let _ = writeln!(svg, "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{right}\"/>");
            let _ = writeln!(
                svg,
                "<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 8.0,
                y + 4.0,
                number(tick)
            );
        }
        // Names are longer than numbers: alternate them between two lines.
        let lines = if self.results.labels.is_empty() { 0.0 } else { 12.0 };
        for (i, place) in self.places.iter().enumerate() {
            let x = self.x(i);
            let _ = writeln!(
                svg,
                "<text class=\"tick\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                bottom + 14.0 + lines * (i % 2) as f64,
                escape(&self.place_name(*place))
            );
        }
        let middle = f64::midpoint(LEFT, right);
        let _ = writeln!(
            svg,
            "<text class=\"label\" x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            HEIGHT - 10.0,
            escape(&self.results.axis)
        );
        let middle = f64::midpoint(TOP, bottom);
        let _ = writeln!(
            svg,
            "<text class=\"label\" transform=\"translate(16 {middle:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            escape(self.shown.title)
        );
        let _ = writeln!(svg, "<path class=\"axis\" d=\"M{LEFT} {TOP}V{bottom}H{right}\"/>");
    }

    fn line(&self, svg: &mut String, index: usize, contestant: &str) {
        let mut points = Vec::new();
        for (i, &place) in self.places.iter().enumerate() {
            if let Some(summary) = self.results.summary(contestant, place, self.shown.figure) {
                points.push((self.x(i), place, summary.scaled(self.shown.scale)));
            }
        }
        let path: Vec<String> =
            points.iter().map(|(x, _, value)| format!("{x:.1},{:.1}", self.y(value.median))).collect();
        let _ = writeln!(svg, "<g class=\"{}\">", class(index));
        if self.results.labels.is_empty() {
            let _ = writeln!(svg, "<polyline points=\"{}\"/>", path.join(" "));
        }
        for (x, place, value) in points {
            let (low, high) = (self.y(value.min), self.y(value.max));
            let _ = writeln!(svg, "<path class=\"spread\" d=\"M{x:.1} {low:.1}V{high:.1}\"/>");
            let title =
                format!("{contestant}, {}: {}", self.place_name(place), value.text(self.shown.decimals));
            let mark = mark(index, x, self.y(value.median), &escape(&title));
            let open = is_bound(self.results, contestant, place, self.shown);
            let _ =
                if open { writeln!(svg, "<g class=\"open\">{mark}</g>") } else { writeln!(svg, "{mark}") };
        }
        *svg += "</g>\n";
    }
}

/// Legend text of hollow marks.
const BOUND: &str = "hollow: at least this much, the generator reached no higher rate";

/// Returns the CSS class of a contestant: its colour, and dashes for later ones.
fn class(index: usize) -> String {
    let dashed = if index >= PLAIN_LINES { " dashed" } else { "" };
    format!("c{}{dashed}", index % COLOURS)
}

/// Returns a disc, square, diamond or triangle at a point, with a tooltip.
fn mark(index: usize, x: f64, y: f64, title: &str) -> String {
    let title = if title.is_empty() { String::new() } else { format!("<title>{title}</title>") };
    let path = match (index / COLOURS + index) % 4 {
        0 => return format!("<circle class=\"mark\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\">{title}</circle>"),
        1 => format!("M{:.1} {:.1}h7v7h-7z", x - 3.5, y - 3.5),
        2 => format!("M{x:.1} {:.1}l5 5l-5 5l-5 -5z", y - 5.0),
        _ => format!("M{x:.1} {:.1}l5 8h-10z", y - 5.0),
    };
    format!("<path class=\"mark\" d=\"{path}\">{title}</path>")
}

/// Formats the number of a tick: in thousands or millions if that is exact to two decimals, else
/// with all digits.
fn number(value: f64) -> String {
    let in_units = |unit: f64| (value / unit * 100.0).fract() == 0.0;
    match value {
        value if value >= 1e6 && in_units(1e6) => format!("{}M", trimmed(value / 1e6)),
        value if value >= 10_000.0 && in_units(1e3) && value % 100.0 == 0.0 => {
            format!("{}k", trimmed(value / 1e3))
        }
        value if value >= 10_000.0 => Grouped(value.round_ties_even() as u64).to_string(),
        value => trimmed(value),
    }
}

/// Below this limit bytes are written without a unit, like frame sizes.
const BYTES_PLAIN: f64 = 10_000.0;

/// Formats a number of bytes: in units of 1024 if it is a multiple of them.
fn bytes(value: f64) -> String {
    let units = [(f64::from(1_u32 << 30), "GiB"), (f64::from(1_u32 << 20), "MiB"), (1024.0, "KiB")];
    let fits = |(unit, _): &(f64, &str)| value >= BYTES_PLAIN.max(*unit) && value % unit == 0.0;
    match units.into_iter().find(fits) {
        Some((unit, name)) => format!("{} {name}", value / unit),
        None => number(value),
    }
}

fn trimmed(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Escapes text for XML and HTML.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::results;
    use crate::table::CAPTURE;

    #[test]
    fn plot_has_one_line_for_each_contestant_and_one_mark_for_each_place() {
        let results = results(&[("v3", 64.0, &[1e6, 2e6]), ("v3", 128.0, &[1e6]), ("<b>", 64.0, &[3e6])]);
        let svg = svg(&results, &CAPTURE[0]).unwrap();
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert_eq!(svg.matches("<title>").count(), 3);
        assert!(svg.contains("&lt;b&gt;, 64: 3.000") && !svg.contains("<b>"));
        assert!(super::svg(&results, &CAPTURE[3]).is_none());
    }

    #[test]
    fn ticks_are_round_and_cover_the_largest_value() {
        let summary = |value| Summary { median: value, min: value, max: value, rounds: 1 };
        assert_eq!(Scale::of(&[summary(2.4), summary(0.9)]).ticks(), [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]);
        let scale = Scale::of(&[summary(7.0), summary(95_000.0)]);
        assert_eq!(scale, Scale::Logarithmic { least: 1.0, most: 100_000.0 });
        assert_eq!(scale.ticks().len(), 6);
        assert!((scale.place(1.0)).abs() < 1e-12 && (scale.place(100_000.0) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn large_numbers_are_short() {
        assert_eq!([64.0, 1518.0, 100_000.0, 2.5e6].map(number), ["64", "1518", "100k", "2.5M"]);
        assert_eq!([16_384.0, 1_048_576.0].map(number), ["16,384", "1,048,576"]);
        assert_eq!([64.0, 16_384.0, 1_048_576.0, 1518.0].map(bytes), ["64", "16 KiB", "1 MiB", "1518"]);
    }

    #[test]
    fn sixteen_lines_have_distinct_classes_and_entries_inside_the_plot() {
        let names: Vec<String> = (0..16).map(|i| format!("contestant-{i}")).collect();
        let series: Vec<(&str, f64, &[f64])> = names.iter().map(|name| (&**name, 64.0, &[1e6][..])).collect();
        let results = results(&series);
        let classes: std::collections::BTreeSet<String> = (0..16).map(class).collect();
        assert_eq!(classes.len(), 16);
        let legend = Legend::new(&results, false);
        let entries = legend.entries();
        assert!(entries.iter().all(|(x, y)| *x < WIDTH - 100.0 && *y < legend.height()), "{entries:?}");
        let rows: std::collections::BTreeSet<u64> = entries.iter().map(|(_, y)| *y as u64).collect();
        assert!(rows.len() > 1);
        let style = include_str!("report.css");
        assert!((0..COLOURS).all(|colour| style.contains(&format!(".c{colour} "))));
    }

    #[test]
    fn axes_name_their_units_and_hollow_marks_are_explained() {
        let mut results = results(&[("v3", 64.0, &[1e6])]);
        let svg = |results: &Results| image_of(results, &CAPTURE[0]).unwrap();
        let plain = svg(&results);
        assert!(plain.contains("rotate(-90)") && plain.contains(">loss-free rate, million packets/s</text>"));
        assert!(plain.contains(">frame size, bytes</text>") && !plain.contains("hollow"));
        let bound = Summary { median: 1.0, min: 1.0, max: 1.0, rounds: 1 };
        results.series[0].summary.insert("generator_bound".into(), bound);
        assert!(svg(&results).contains(BOUND));
    }
}
