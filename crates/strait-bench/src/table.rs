//! Text tables of results: one table for each figure, one row for each contestant, one column for
//! each place on the axis.

use std::fmt::Write as _;

use crate::claim::Claim;
use crate::results::Results;

/// Figure to show.
#[derive(Clone, Copy, Debug)]
pub struct Shown {
    /// Name in the results.
    pub figure: &'static str,
    /// Title, with the displayed unit.
    pub title: &'static str,
    /// Factor to the displayed unit.
    pub scale: f64,
    /// Number of decimals.
    pub decimals: usize,
    /// True if more is better.
    pub more_is_better: bool,
}

const fn shown(
    figure: &'static str,
    title: &'static str,
    scale: f64,
    decimals: usize,
    more_is_better: bool,
) -> Shown {
    Shown { figure, title, scale, decimals, more_is_better }
}

/// Figures of a capture benchmark; the first is the main one.
pub const CAPTURE: [Shown; 7] = [
    shown("lossfree_pps", "loss-free rate, million packets/s", 1e-6, 3, true),
    shown("tolerated_pps", "rate at 0.1 % loss, million packets/s", 1e-6, 3, true),
    shown("cpu_s_per_million", "CPU seconds per million packets", 1.0, 3, false),
    shown("cycles_per_packet", "CPU cycles per packet", 1.0, 0, false),
    shown("p50_us", "delay, median, us", 1.0, 1, false),
    shown("p99_us", "delay, 99th percentile, us", 1.0, 1, false),
    shown("p99.9_us", "delay, 99.9th percentile, us", 1.0, 1, false),
];

/// Figures of a latency benchmark.
pub const LATENCY: [Shown; 5] = [
    shown("p50_us", "delay, median, us", 1.0, 1, false),
    shown("p99_us", "delay, 99th percentile, us", 1.0, 1, false),
    shown("p99.9_us", "delay, 99.9th percentile, us", 1.0, 1, false),
    shown("cpu_s_per_million", "CPU microseconds per packet", 1.0, 2, false),
    shown("loss_percent", "loss, %", 1.0, 3, false),
];

/// Figures of a tax benchmark.
pub const TAX: [Shown; 10] = [
    shown("tax_us", "tax, CPU microseconds per packet above no capture", 1.0, 3, false),
    shown("host_us", "of these on the host's packet path", 1.0, 3, false),
    shown("reader_us", "of these in the reader", 1.0, 3, false),
    shown("host_cpu_us", "generator and packet path, CPU microseconds per packet", 1.0, 3, false),
    shown("loss_percent", "loss, %", 1.0, 3, false),
    shown("offered_pps", "sent, million packets/s", 1e-6, 3, true),
    shown("forwarded_pps", "forwarded by the bridge, million packets/s", 1e-6, 3, true),
    shown("tcp_bytes_per_s", "TCP of the host, Gbit/s", 8e-9, 2, true),
    shown("p99_us", "round trip of the host's TCP, 99th percentile, us", 1.0, 1, false),
    shown("reader_percent", "reader during TCP, % of a CPU", 1.0, 1, false),
];

/// Figures of a send benchmark.
pub const SEND: [Shown; 5] = [
    shown("lent_percent", "lent to the kernel, % of the bytes", 1.0, 1, true),
    shown("messages_per_s", "thousand messages/s", 1e-3, 2, true),
    shown("bytes_per_s", "GB/s", 1e-9, 3, true),
    shown("cpu_s_per_gb", "CPU seconds per GB", 1.0, 4, false),
    shown("zero_copy_percent", "sent without a copy, %", 1.0, 0, true),
];

/// Figures of a proxy benchmark.
pub const PROXY: [Shown; 12] = [
    shown("requests_per_s", "thousand requests/s", 1e-3, 2, true),
    shown("bytes_per_s", "GB/s", 1e-9, 3, true),
    shown("cpu_us_per_request", "CPU microseconds per request", 1.0, 1, false),
    shown("cpu_s_per_gb", "CPU seconds per GB", 1.0, 3, false),
    shown("p50_us", "response time, median, us", 1.0, 0, false),
    shown("p90_us", "response time, 90th percentile, us", 1.0, 0, false),
    shown("p99_us", "response time, 99th percentile, us", 1.0, 0, false),
    shown("max_us", "response time, longest, us", 1.0, 0, false),
    shown("hit_percent", "answered without the origin, %", 1.0, 1, true),
    shown("memory_mib", "memory at most, MiB", 1.0, 0, false),
    shown("busy_percent", "CPU of the proxy in use, %", 1.0, 0, false),
    shown("unanswered", "requests unanswered at the end", 1.0, 0, false),
];

/// Figures of caches on traces.
pub const CACHE: [Shown; 5] = [
    shown("hit_percent", "hits, % of the requests", 1.0, 2, true),
    shown("hit_bytes_percent", "hits, % of the bytes", 1.0, 2, true),
    shown("bytes_written_per_byte", "bytes written per byte of a new object", 1.0, 2, false),
    shown("failed", "objects not stored", 1.0, 0, false),
    shown("used_percent", "used at the end, % of the capacity", 1.0, 1, true),
];

/// Figures of a start of the proxy.
pub const RESTART: [Shown; 8] = [
    shown("first_hit_ms", "first hit, ms after the start", 1.0, 1, false),
    shown("first_response_ms", "first response, ms after the start", 1.0, 1, false),
    shown("hits", "stored objects that were hits", 1.0, 0, true),
    shown("misses", "stored objects that were fetched again", 1.0, 0, false),
    shown("slowest_hit_ms", "slowest hit, ms", 1.0, 1, false),
    shown("unknown", "requests for other objects", 1.0, 0, true),
    shown("slowest_unknown_ms", "slowest of these, ms", 1.0, 1, false),
    shown("memory_mib", "memory, MiB", 1.0, 1, false),
];

/// Figures of a start and a reload of the proxy with many certificates.
pub const CERTIFICATES: [Shown; 7] = [
    shown("start_ms", "start, ms until it listens", 1.0, 0, false),
    shown("start_cpu_ms", "CPU time of the start, ms", 1.0, 0, false),
    shown("at_rest_mib", "memory after the start, MiB", 1.0, 1, false),
    shown("start_peak_mib", "memory at most during the start, MiB", 1.0, 1, false),
    shown("reload_ms", "reload of the same files, ms", 1.0, 0, false),
    shown("reload_cpu_ms", "CPU time of the reload, ms", 1.0, 0, false),
    shown("memory_mib", "memory at most after the reload, MiB", 1.0, 1, false),
];

/// Figures of D4's experiments: response time and CPU time first, because their open loops fix the
/// rate.
pub const PROXY_FIGURES: [Shown; 9] =
    [PROXY[4], PROXY[5], PROXY[6], PROXY[10], PROXY[2], PROXY[0], PROXY[8], PROXY[9], PROXY[11]];

/// Instructions of a packet from the wire to the program, counted in a virtual machine; D1's Figure
/// 5 first.
pub const INSTRUCTIONS: [Shown; 4] = [
    shown("times_fewer", "times fewer guest instructions than libpcap", 1.0, 1, true),
    shown("instructions", "guest instructions per packet", 1.0, 0, false),
    shown("kernel_instructions", "of these in the kernel", 1.0, 0, false),
    shown("user_instructions", "of these in the program", 1.0, 0, false),
];

/// Instructions of a hit of the proxy, counted in a virtual machine; the ratio that is the aim
/// first.
pub const TLS_INSTRUCTIONS: [Shown; 5] = [
    shown("to_user_space", "guest instructions per hit, to TLS in user space", 1.0, 2, false),
    shown("instructions", "guest instructions per hit", 1.0, 0, false),
    shown("kernel_instructions", "of these in the kernel", 1.0, 0, false),
    shown("user_instructions", "of these in the program", 1.0, 0, false),
    shown("cipher_instructions", "of both in loops that encrypt", 1.0, 0, false),
];

/// Figures of all receivers at full rate.
const FULL_RATE: [Shown; 4] = [
    shown("delivered_pps", "delivered, million packets/s", 1e-6, 3, true),
    shown("offered_pps", "offered, million packets/s", 1e-6, 3, true),
    shown("loss_percent", "loss, %", 1.0, 2, false),
    CAPTURE[2],
];

/// Highest rates without loss.
const LOSSFREE: [Shown; 2] = [CAPTURE[0], shown("tries", "tries", 1.0, 0, false)];

/// Delays. Only some receivers also measure the delay from the timestamp of the capture.
const DELAYS: [Shown; 8] = [
    LATENCY[0],
    LATENCY[1],
    shown("max_us", "delay, longest, us", 1.0, 0, false),
    shown("captured_p50_us", "delay from the time of capture, median, us", 1.0, 1, false),
    shown("captured_p99_us", "delay from the time of capture, 99th percentile, us", 1.0, 1, false),
    LATENCY[3],
    shown("offered_pps", "offered, thousand packets/s", 1e-3, 1, true),
    shown("lost_packets", "packets lost", 1.0, 0, false),
];

/// Rates of generators.
const GENERATORS: [Shown; 2] = [shown("offered_pps", "sent, million packets/s", 1e-6, 3, true), CAPTURE[2]];

/// Captures to a file.
const FILES: [Shown; 4] = [
    shown("cpu_total_s_per_million", "CPU seconds per million packets", 1.0, 3, false),
    shown("loss_percent", "loss, %", 1.0, 3, false),
    shown("offered_pps", "offered, thousand packets/s", 1e-3, 1, true),
    shown("file_bytes", "file, MB", 1e-6, 1, false),
];

/// Figures with a comparison of Strait's proxy and the best other one.
const RATIOS: [&str; 4] = ["requests_per_s", "cpu_us_per_request", "cpu_s_per_gb", "p50_us"];

/// Returns the figures to show: those that were measured.
pub fn figures(results: &Results) -> Vec<Shown> {
    let all: &[Shown] = match results.benchmark.split_once(' ').unwrap_or((&results.benchmark, "")) {
        ("latency", _) => &LATENCY,
        ("tax", _) => &TAX,
        ("cache", _) => &CACHE,
        ("restart", _) => &RESTART,
        ("certificates", _) => &CERTIFICATES,
        ("send", _) => &SEND,
        ("proxy", "") => &PROXY,
        ("instructions", "tls") => &TLS_INSTRUCTIONS,
        ("instructions", _) => &INSTRUCTIONS,
        ("proxy", _) => &PROXY_FIGURES,
        ("claims", "lossfree") => &LOSSFREE,
        ("claims", "latency" | "dropin") => &DELAYS,
        ("claims", "generate") => &GENERATORS,
        ("claims", "disk") => &FILES,
        ("claims", _) => &FULL_RATE,
        _ => &CAPTURE,
    };
    let measured =
        |shown: &&Shown| results.series.iter().any(|series| series.summary.contains_key(shown.figure));
    all.iter().filter(measured).copied().collect()
}

/// Formats all tables, skipped contestants, failures and claims.
pub fn text(results: &Results) -> String {
    let mut text = String::new();
    for shown in figures(results) {
        text += &of(results, &shown);
        text.push('\n');
    }
    if results.series.iter().any(|series| series.summary.get("generator_bound").is_some_and(|b| b.max > 0.5))
    {
        text += ">= stands for a rate that the generator did not exceed: the receiver may take more.\n";
    }
    text += &remarks(results);
    if !results.claims.is_empty() {
        text = text + "\n" + &of_claims(&results.claims);
    }
    text
}

/// Formats claims with their figures and verdicts.
pub fn of_claims(claims: &[Claim]) -> String {
    aligned(&claim_rows(claims))
}

/// Returns one row for each claim, below a row of titles.
pub(crate) fn claim_rows(claims: &[Claim]) -> Vec<Vec<String>> {
    let mut rows = vec![["claim", "bound", "measured", "verdict"].map(str::to_owned).to_vec()];
    for claim in claims {
        let measured = claim.measured.map_or("-".into(), |measured| measured.text(3));
        let bound = format!("{} {}", claim.bound, claim.unit);
        rows.push(vec![claim.text.clone(), bound.trim_end().into(), measured, claim.verdict.to_string()]);
    }
    rows
}

fn of(results: &Results, shown: &Shown) -> String {
    let places = results.places();
    let mut rows = vec![vec![results.axis.clone()]];
    rows[0].extend(places.iter().map(|&place| results.place_name(place)));
    for contestant in results.contestants() {
        let mut row = vec![contestant.to_owned()];
        row.extend(places.iter().map(|&place| cell(results, contestant, place, shown)));
        rows.push(row);
    }
    rows.extend(comparison_row(results, shown));
    format!("{}\n{}", shown.title, aligned(&rows))
}

/// Returns the row that compares Strait's proxy with the best of the others, if both were measured.
pub(crate) fn comparison_row(results: &Results, shown: &Shown) -> Option<Vec<String>> {
    let is_compared = RATIOS.contains(&shown.figure) && results.benchmark.starts_with("proxy");
    let contestants = results.contestants();
    let is_other = |name: &&str| !name.starts_with("strait") && *name != "direct";
    let others: Vec<&str> = contestants.iter().copied().filter(is_other).collect();
    if !is_compared || others.is_empty() || !contestants.contains(&"strait") {
        return None;
    }
    let ratio = |at| {
        let figure = (shown.figure, shown.more_is_better);
        results.ratio_to_best("strait", &others, figure, at)
    };
    let text = |at| ratio(at).map_or("-".into(), |(ratio, name)| format!("{} {name}", ratio.text(2)));
    Some(
        ["strait to the best".to_owned()].into_iter().chain(results.places().into_iter().map(text)).collect(),
    )
}

pub(crate) fn cell(results: &Results, contestant: &str, place: f64, shown: &Shown) -> String {
    let Some(summary) = results.summary(contestant, place, shown.figure) else { return "-".into() };
    let text = summary.scaled(shown.scale).text(shown.decimals);
    if is_bound(results, contestant, place, shown) { format!(">={text}") } else { text }
}

/// Returns true if the generator limited this figure in any round: the median then mixes limits of
/// generator and receiver.
pub(crate) fn is_bound(results: &Results, contestant: &str, place: f64, shown: &Shown) -> bool {
    let is_rate = shown.figure.ends_with("_pps");
    is_rate && results.summary(contestant, place, "generator_bound").is_some_and(|summary| summary.max > 0.5)
}

/// Lists skipped contestants and failed rounds.
pub(crate) fn remarks(results: &Results) -> String {
    let mut text = String::new();
    if !results.complete {
        text += "Interrupted: these are the results up to then, of fewer rounds than requested.\n";
    }
    // Writing to a String cannot fail.
    for (names, reason) in left_out(results) {
        let _ = writeln!(text, "{} left out: {reason}", names.join(", "));
    }
    for series in &results.series {
        for failure in series.failures() {
            let place = results.place_name(series.at);
            let _ = writeln!(text, "{} at {place} failed: {failure}", series.contestant);
        }
        if let Some(delays) = series.summary.get("delays").filter(|delays| delays.max < DELAYS_MIN) {
            let (contestant, at, count) = (&series.contestant, series.at, delays.max);
            let _ = writeln!(
                text,
                "{contestant} at {at}: {count} delays are too few for a median: give more --seconds"
            );
        }
    }
    text
}

/// Minimum number of delays for a median: with fewer its value is chance.
const DELAYS_MIN: f64 = 19.0;

/// Returns skipped contestants, grouped by reason.
fn left_out(results: &Results) -> Vec<(Vec<&str>, &str)> {
    let mut groups: Vec<(Vec<&str>, &str)> = Vec::new();
    for skipped in &results.skipped {
        match groups.iter_mut().find(|(_, reason)| *reason == skipped.reason) {
            Some((names, _)) => names.push(&skipped.contestant),
            None => groups.push((vec![&skipped.contestant], &skipped.reason)),
        }
    }
    groups
}

/// Aligns columns: the first to the left, the others to the right.
pub(crate) fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        for (column, cell) in row.iter().enumerate() {
            let width = widths[column];
            let _ =
                if column == 0 { write!(text, "{cell:width$}") } else { write!(text, "  {cell:>width$}") };
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::Bound;
    use crate::results::tests::results;

    #[test]
    fn table_has_one_row_for_each_contestant_and_one_column_for_each_place() {
        let results =
            results(&[("v3", 64.0, &[2e6, 4e6]), ("libpcap", 64.0, &[1e6]), ("v3", 128.0, &[f64::NAN])]);
        let text = text(&results);
        assert!(text.contains("frame size, bytes                    64  128\n"), "{text}");
        assert!(text.contains("v3                 3.000 (2.000..4.000)    -\n"), "{text}");
        assert!(text.contains("libpcap                           1.000    -\n"), "{text}");
        assert!(text.ends_with("v3 at 128 failed: broke\n"), "{text}");
    }

    #[test]
    fn claims_have_their_bound_and_verdict() {
        let claims = vec![Claim::of_values("fast", &[2.0], "x", Bound::AtLeast(1.5))];
        let text = text(&Results { claims, ..results(&[]) });
        assert_eq!(text.lines().next_back().unwrap(), "fast   >= 1.5 x     2.000    holds");
    }
}
