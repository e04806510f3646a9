//! Claims about Strait's speed, checked by comparison with other programs (peers): `strait-bench
//! claims`, which `make bench` runs.
//!
//! Each benchmark measures Strait and its peers in turn, round after round, and adds its claims to
//! the results. The peers are programs in C ([`peers`]), libpcap's programs, other proxies, and
//! other methods of sending. `only` limits the points of the benchmarks of captures.

mod balanced;
mod capture;
mod context;
mod disk;
mod dropin;
mod generate;
mod latency;
mod lossfree;
pub mod measure;
pub mod peers;
pub mod programs;
mod proxy;
mod send;

pub use context::{Context, Reporter};

use crate::error::Result;
use crate::results::Results;

/// Benchmark with claims.
pub type Benchmark = fn(&Context<'_>, &mut Reporter<'_>) -> Result<()>;

/// All benchmarks by name.
pub const BENCHMARKS: [(&str, Benchmark); 9] = [
    ("capture", capture::run),
    ("lossfree", lossfree::run),
    ("latency", latency::run),
    ("balanced", balanced::run),
    ("generate", generate::run),
    ("disk", disk::run),
    ("dropin", dropin::run),
    ("send", send::run),
    ("proxy", proxy::run),
];

/// Returns the name of the file for results, such as `capture.json` or `send-buffer.json`.
pub fn file_name(results: &Results) -> String {
    let name = results.benchmark.strip_prefix("claims ").unwrap_or(&results.benchmark);
    format!("{}.json", name.replace(' ', "-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_named_after_its_subject() {
        let of = |benchmark: &str| file_name(&Results { benchmark: benchmark.into(), ..Results::default() });
        assert_eq!(
            [of("claims disk"), of("send buffer"), of("proxy")],
            ["disk.json", "send-buffer.json", "proxy.json"]
        );
    }
}
