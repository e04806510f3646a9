//! Options of `strait demo`.

use clap::Args as ClapArgs;
use strait_capture::libpcap;

/// The filter of the captures, unless the user names another one.
const FILTER: &str = "not (udp dst portrange 20000-20001 and less 70)";

/// Options of `strait demo`.
#[derive(ClapArgs)]
pub(crate) struct Args {
    /// Generated packets for each path
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = packets)]
    pub(super) count: u64,
    /// Generated packets a second
    #[arg(long, value_name = "PPS", default_value = "100000")]
    pub(super) rate: crate::parse::Rate,
    /// Filter that every path applies, see pcap-filter(7) [default: "not (udp dst portrange
    /// 20000-20001 and less 70)"; without libpcap none]
    #[arg(long)]
    filter: Option<String>,
    /// Print the results as one JSON object
    #[arg(long)]
    pub(super) json: bool,
    /// Run as the libpcap program that the demo measures, on this interface
    #[arg(long, value_name = "INTERFACE", hide = true)]
    pub(super) libpcap_program: Option<String>,
}

impl Args {
    /// Returns the filter of the captures. Without libpcap, which compiles it, all packets match,
    /// unless the user named a filter.
    pub(super) fn filter(&self) -> &str {
        let default = if libpcap::version().is_ok() { FILTER } else { "" };
        self.filter.as_deref().unwrap_or(default)
    }

    /// Returns the line about the filter.
    pub(super) fn filter_line(&self) -> String {
        match (self.filter(), libpcap::version()) {
            ("", Err(error)) => format!("filter: none: {error}"),
            ("", Ok(_)) => "filter: none".into(),
            (filter, _) => format!("filter: {filter}"),
        }
    }
}

/// Parses a number of generated packets, at most ten million.
fn packets(text: &str) -> Result<u64, String> {
    const MAX: u64 = 10_000_000;
    crate::parse::count(text)
        .and_then(|count| if count <= MAX { Ok(count) } else { Err(format!("give at most {MAX}")) })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn named_filter_replaces_the_default_even_without_libpcap() {
        let filter = |words: &[&str]| {
            let args = Line::parse_from(["demo"].iter().chain(words)).args;
            (args.filter().to_owned(), args.filter_line())
        };
        assert_eq!(filter(&["--filter", "udp"]), ("udp".into(), "filter: udp".into()));
        assert_eq!(filter(&["--filter", ""]).0, "");
        let (default, line) = filter(&[]);
        match libpcap::version() {
            Ok(_) => assert_eq!((&*default, line), (FILTER, format!("filter: {FILTER}"))),
            Err(error) => assert_eq!((&*default, line), ("", format!("filter: none: {error}"))),
        }
    }
}
