//! Metrics in the text format of Prometheus (exposition formats, version 0.0.4).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use strait_http::coding::Coding;
use strait_http2::Abuse;
use strait_ledger::prometheus::Text;

use super::guards;
use super::names::{self, NameStatus};
use super::servers::{self, ServerStatus};
use crate::cache::compressor::{Coded, Compressor, Skip};
use crate::cache::worker::Shared;
use crate::config::rules::Guards;
use crate::io::tls::Failure;
use crate::observe::access::Outcome;
use crate::observe::counters::{CLASSES, Durations, SpanCounters, SpanLoss, Sum};
use crate::observe::refusals::Refusal;

/// Returns all metrics.
pub(super) fn text(
    shared: &Shared,
    (servers, names): (&[ServerStatus], &[NameStatus]),
    guards: &Guards,
    expiries: &[(&str, u64)],
) -> String {
    let mut out = Text::default();
    let sum = shared.sum();
    proxy(&mut out, &sum);
    out.family(
        "strait_proxy_origin_http2_abuse_total",
        "counter",
        "HTTP/2 connections that were ended because the origin exceeded a limit.",
    );
    for abuse in Abuse::ALL {
        out.sample("", &[("limit", abuse.name())], shared.origin_http2_abuses.get(abuse));
    }
    out.family("strait_proxy_fills", "gauge", "Fills that are under way.");
    out.sample("", &[], shared.fills.count());
    out.family(
        "strait_proxy_failed_upgrades_total",
        "counter",
        "Upgrades that failed: this process goes on.",
    );
    out.sample("", &[], shared.failed_upgrades.load(Ordering::Relaxed));
    out.family(
        "strait_proxy_failed_reloads_total",
        "counter",
        "Reloads that failed: the settings before stay in force.",
    );
    out.sample("", &[], shared.failed_reloads.load(Ordering::Relaxed));
    out.family(
        "strait_proxy_certificate_expiry_timestamp_seconds",
        "gauge",
        "Time at which the certificate of a host expires, in seconds since 1970, by host.",
    );
    for (host, expiry) in expiries {
        out.sample("", &[("host", host)], *expiry);
    }
    spans(&mut out, &shared.spans);
    if !servers.is_empty() {
        servers::metrics(&mut out, servers);
        names::metrics(&mut out, names);
    }
    guards::metrics(&mut out, guards);
    compressor(&mut out, &shared.compressor);
    if let Some(store) = &shared.store {
        self::store(&mut out, &store.stats());
    }
    out.into_string()
}

fn proxy(out: &mut Text, sum: &Sum) {
    out.family("strait_proxy_build_info", "gauge", "Version of the proxy.");
    out.sample("", &[("version", env!("CARGO_PKG_VERSION"))], 1);
    by(
        out,
        "strait_proxy_requests_total",
        "Requests by source of the response.",
        Outcome::ALL.map(|outcome| (("cache", outcome.name()), sum.outcome(outcome))),
    );
    let classes = (1..CLASSES).zip(["1xx", "2xx", "3xx", "4xx", "5xx"]);
    by(
        out,
        "strait_proxy_responses_total",
        "Responses by the first digit of their status.",
        classes.map(|(class, name)| (("status", name), sum.classes[class])),
    );
    let mechanism = |(mechanism, bytes)| (("mechanism", mechanism), bytes);
    by(
        out,
        "strait_proxy_response_bytes_total",
        "Bytes sent to clients, by mechanism.",
        [("copy", sum.copied), ("sendfile", sum.sendfile), ("splice", sum.spliced)].map(mechanism),
    );
    by(
        out,
        "strait_proxy_fill_bytes_total",
        "Bytes written to the cache by fills, by mechanism.",
        [("copy", sum.filled_copied), ("splice", sum.filled_spliced)].map(mechanism),
    );
    out.family(
        "strait_proxy_response_seconds",
        "histogram",
        "Time from the complete request to the last byte passed to the kernel, without tunnels.",
    );
    times(out, "hit", &sum.hits);
    times(out, "other", &sum.others);
    let numbers = [
        ("connections_accepted_total", "counter", "Client connections that were accepted.", sum.accepted),
        ("connections", "gauge", "Open client connections.", sum.open),
        ("responses_cut_total", "counter", "Incomplete responses.", sum.cut),
        ("origin_connections_total", "counter", "Connections to origins that were opened.", sum.opened),
        (
            "origin_connections_reused_total",
            "counter",
            "Requests on reused connections to origins.",
            sum.reused,
        ),
        (
            "log_dropped_total",
            "counter",
            "Lines of the access log that were lost because its queue was full or a write failed.",
            sum.log_dropped,
        ),
        ("http2_streams_total", "counter", "Requests on HTTP/2 connections.", sum.http2_streams),
    ];
    out.single("strait_proxy", &[], &numbers);
    reasons(out, sum);
}

/// Writes the counters of clients that were refused, by reason.
fn reasons(out: &mut Text, sum: &Sum) {
    by(
        out,
        "strait_proxy_connections_refused_total",
        "Client connections, and requests of HTTP/2 connections, that were refused, by reason.",
        Refusal::ALL.map(|refusal| (("reason", refusal.name()), sum.refused[refusal as usize])),
    );
    by(
        out,
        "strait_proxy_tls_handshakes_failed_total",
        "TLS handshakes of clients that failed, by reason.",
        Failure::ALL.map(|failure| (("reason", failure.name()), sum.handshakes[failure as usize])),
    );
    by(
        out,
        "strait_proxy_http2_abuse_total",
        "HTTP/2 connections that were ended because the client exceeded a limit.",
        Abuse::ALL.map(|abuse| (("limit", abuse.name()), sum.http2_abuse[abuse as usize])),
    );
}

/// Writes counters that a label distinguishes.
fn by<'n>(
    out: &mut Text,
    name: &str,
    help: &str,
    counters: impl IntoIterator<Item = ((&'n str, &'n str), u64)>,
) {
    out.family(name, "counter", help);
    for (label, number) in counters {
        out.sample("", &[label], number);
    }
}

fn spans(out: &mut Text, spans: &SpanCounters) {
    out.family("strait_proxy_spans_sent_total", "counter", "Spans that the collector has accepted.");
    out.sample("", &[], spans.sent());
    by(
        out,
        "strait_proxy_spans_dropped_total",
        "Spans that were dropped, by reason.",
        SpanLoss::ALL.map(|loss| (("reason", loss.name()), spans.lost(loss))),
    );
}

fn compressor(out: &mut Text, compressor: &Compressor) {
    type Number = fn(&Coded) -> &AtomicU64;
    let families: [(&str, &str, Number); 4] = [
        ("strait_proxy_compressed_total", "Stored responses that were compressed, by coding.", |it| {
            &it.forms
        }),
        ("strait_proxy_compress_in_bytes_total", "Bytes of their bodies before.", |it| &it.bytes_in),
        ("strait_proxy_compress_out_bytes_total", "Bytes of their bodies afterwards.", |it| &it.bytes_out),
        (
            "strait_proxy_compress_not_shorter_total",
            "Stored responses that a coding would not have made shorter.",
            |it| &it.not_shorter,
        ),
    ];
    for (name, help, number) in families {
        out.family(name, "counter", help);
        for (coding, counters) in Coding::ALL.into_iter().zip(&compressor.coded) {
            out.sample("", &[("coding", coding.name())], number(counters).load(Ordering::Relaxed));
        }
    }
    out.family(
        "strait_proxy_compress_skipped_total",
        "counter",
        "Stored responses that were not compressed, by reason.",
    );
    for skip in Skip::ALL {
        out.sample("", &[("reason", skip.name())], compressor.skipped(skip));
    }
    out.family("strait_proxy_compress_waiting", "gauge", "Stored responses that wait to be compressed.");
    out.sample("", &[], compressor.waiting());
}

fn store(out: &mut Text, stats: &strait_store::Stats) {
    let numbers = [
        ("records", "gauge", "Records in the index.", stats.records),
        (
            "used_bytes",
            "gauge",
            "Bytes of all files, with evicted files that are still read.",
            stats.used_bytes,
        ),
        ("pinned_bytes", "gauge", "Bytes of evicted files that are still read.", stats.pinned_bytes),
        ("capacity_bytes", "gauge", "Limit of strait_store_used_bytes.", stats.capacity_bytes),
        ("files", "gauge", "Open files.", stats.files),
        ("loaded", "gauge", "1 if the records of earlier sessions are loaded.", stats.is_loaded.into()),
        ("stored_total", "counter", "Records that were committed.", stats.stored),
        ("removed_total", "counter", "Records that were removed or replaced.", stats.removed),
        ("evicted_total", "counter", "Records that were dropped by eviction.", stats.evicted),
        ("reinserted_total", "counter", "Records that were kept by eviction.", stats.reinserted),
        (
            "reinserted_bytes_total",
            "counter",
            "Bytes of records that eviction has written again.",
            stats.reinserted_bytes,
        ),
        ("corrupt_total", "counter", "Damaged records that were dropped.", stats.corrupt),
        ("scrubbed_total", "counter", "Records that the scrub has found intact.", stats.scrubbed),
        ("scrubbed_bytes_total", "counter", "Bytes that the scrub has read.", stats.scrubbed_bytes),
        (
            "unsynced_total",
            "counter",
            "Records that were dropped because a power loss may have damaged them.",
            stats.unsynced,
        ),
        (
            "refused_total",
            "counter",
            "Objects that were refused for lack of space, or because a part is too long.",
            stats.refused,
        ),
        (
            "without_spare_total",
            "counter",
            "Segments that a worker created itself or waited for.",
            stats.without_spare,
        ),
        ("failed_total", "counter", "Calls to the file system that failed.", stats.failed),
        ("lost", "gauge", "Directories that cannot be used.", stats.lost),
    ];
    out.single("strait_store", &[], &numbers);
    out.family("strait_store_scrub_cpu_seconds_total", "counter", "CPU time of the scrub.");
    out.sample("", &[], Duration::from_nanos(stats.scrub_cpu_ns).as_secs_f64());
}

fn times(out: &mut Text, cache: &str, times: &Durations) {
    for (end_us, below) in times.octaves() {
        // Bounds are whole microseconds, so six decimals are exact.
        let end = format!("{}.{:06}", end_us / 1_000_000, end_us % 1_000_000);
        out.sample("_bucket", &[("cache", cache), ("le", &end)], below);
    }
    let count = times.count();
    out.sample("_bucket", &[("cache", cache), ("le", "+Inf")], count);
    let sum = format!("{}.{:06}", times.sum() / 1_000_000, times.sum() % 1_000_000);
    out.sample("_sum", &[("cache", cache)], sum);
    out.sample("_count", &[("cache", cache)], count);
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};
    use std::net::SocketAddr;
    use std::time::Duration;

    use super::*;
    use crate::io::socket::Moved;
    use crate::observe::access::{Account, Record};
    use crate::observe::counters::Counters;

    fn all() -> String {
        let counters = Counters::default();
        for ms in [1, 20, 300] {
            let record = &Record { status: 200, outcome: Outcome::Hit, ..Record::default() };
            let took = Duration::from_millis(ms);
            let client = SocketAddr::from(([127, 0, 0, 1], 1));
            let moved = Moved { sent: 100, ..Moved::default() };
            counters.count(&Account {
                client,
                stream: None,
                tls: None,
                request: None,
                record,
                moved,
                took,
                is_whole: true,
            });
        }
        let mut out = Text::default();
        proxy(&mut out, &Sum::of([&counters]));
        store(&mut out, &strait_store::Stats::default());
        out.into_string()
    }

    /// Checks the rules of the format as a parser does.
    #[test]
    fn text_follows_the_format_of_prometheus() {
        let text = all();
        assert!(text.ends_with('\n'));
        let (mut families, mut samples) = (HashMap::new(), HashSet::new());
        let mut family = "";
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').unwrap();
                assert!(help.ends_with('.') && !families.contains_key(name), "{line}");
                family = name;
                continue;
            }
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert!(name == family && ["counter", "gauge", "histogram"].contains(&kind), "{line}");
                assert_eq!(name.ends_with("_total"), kind == "counter", "{line}");
                families.insert(name, kind);
                continue;
            }
            let (series, value) = line.rsplit_once(' ').unwrap();
            assert!(value.parse::<f64>().is_ok() && samples.insert(series), "{line}");
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            assert!(
                name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_'),
                "{line}"
            );
            let suffixes: &[&str] =
                if families[family] == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
            assert!(suffixes.iter().any(|suffix| name == format!("{family}{suffix}")), "{line}");
            let is_label = |label: &str| {
                label.split_once("=\"").is_some_and(|(name, value)| !name.is_empty() && value.ends_with('"'))
            };
            let labels = labels.strip_suffix('}').unwrap_or(labels);
            assert!(labels.is_empty() || labels.split(',').all(is_label), "{line}");
        }
    }

    #[test]
    fn a_histogram_grows_to_its_count() {
        let text = all();
        let of_hits = |line: &&str| line.contains("_bucket{cache=\"hit\"");
        let counts: Vec<u64> = text
            .lines()
            .filter(of_hits)
            .map(|line| line.rsplit_once(' ').unwrap().1.parse().unwrap())
            .collect();
        assert!(counts.is_sorted() && counts.last() == Some(&3), "{counts:?}");
        assert!(text.contains("strait_proxy_response_seconds_bucket{cache=\"hit\",le=\"0.032768\"} 2\n"));
        assert!(text.contains("strait_proxy_response_seconds_sum{cache=\"hit\"} 0.321000\n"));
        assert!(text.contains("strait_proxy_requests_total{cache=\"hit\"} 3\n"));
        assert!(text.contains("strait_proxy_response_bytes_total{mechanism=\"copy\"} 300\n"));
    }

    #[test]
    fn duration_beyond_the_last_bound_counts_in_infinity_alone() {
        let durations = Durations::default();
        for duration in [Duration::from_secs(1), Duration::from_mins(10)] {
            durations.record(duration.as_micros() as u64);
        }
        let mut out = Text::default();
        out.family("seconds", "histogram", "Durations.");
        times(&mut out, "hit", &durations);
        let text = out.into_string();
        assert!(text.contains("seconds_bucket{cache=\"hit\",le=\"134.217728\"} 1\n"), "{text}");
        assert!(text.contains("seconds_bucket{cache=\"hit\",le=\"+Inf\"} 2\n"), "{text}");
    }
}
