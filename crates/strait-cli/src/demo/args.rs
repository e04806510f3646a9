//! Options of `strait demo`.

use clap::Args as ClapArgs;

/// Options of `strait demo`.
#[derive(ClapArgs)]
pub(crate) struct Args {
    /// Generated packets for each path
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = packets)]
    pub(super) count: u64,
    /// Generated packets a second
    #[arg(long, value_name = "PPS", default_value = "100000")]
    pub(super) rate: crate::parse::Rate,
    /// Filter that every path applies, see pcap-filter(7)
    #[arg(long, default_value = "not (udp dst portrange 20000-20001 and less 70)")]
    pub(super) filter: String,
    /// Print the results as one JSON object
    #[arg(long)]
    pub(super) json: bool,
    /// Run as the libpcap program that the demo measures, on this interface
    #[arg(long, value_name = "INTERFACE", hide = true)]
    pub(super) libpcap_program: Option<String>,
}

/// Parses a number of generated packets, at most ten million.
fn packets(text: &str) -> Result<u64, String> {
    const MAX: u64 = 10_000_000;
    crate::parse::count(text)
        .and_then(|count| if count <= MAX { Ok(count) } else { Err(format!("give at most {MAX}")) })
}
