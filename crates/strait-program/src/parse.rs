//! Values on the command line: durations, sizes, rates, addresses, lists of numbers.
//!
//! Every command parses them here, so that `10s`, `100k`, `10GiB` and `:9000` mean the same in each
//! option. A plain number has the unit that the option names.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::str::FromStr;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use strait_ledger::quantity;

/// Largest number of a list, so that `0-4000000000` does not fill the memory.
const NUMBER_MAX: u32 = 4095;

/// Returns a parser of names, for a table of values with their names and descriptions.
pub fn one_of<T: Copy + Send + Sync + 'static>(
    table: impl IntoIterator<Item = (T, &'static str, &'static str)>,
) -> impl TypedValueParser<Value = T> {
    let table: Vec<_> = table.into_iter().collect();
    let names = table.iter().map(|(_, name, description)| PossibleValue::new(*name).help(*description));
    PossibleValuesParser::new(names.collect::<Vec<_>>()).try_map(move |given| {
        let found = table.iter().find(|(_, name, _)| *name == given);
        found.map(|(value, ..)| *value).ok_or_else(|| format!("'{given}' is not in the table"))
    })
}

/// List of numbers and ranges without repetition, as in `0,2,5-7`.
#[derive(Clone, Debug)]
pub struct NumberList(pub Vec<u32>);

impl FromStr for NumberList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Err(format!("'{text}' is not a list of numbers"));
        }
        quantity::numbers(text, NUMBER_MAX).map(Self)
    }
}

/// Packets per second: a number as in 1000, 100k or 1.5M, or `max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate(Option<u64>);

impl Rate {
    /// Unlimited rate.
    pub const MAX: Self = Self(None);

    /// Returns true for an unlimited rate.
    pub fn is_max(self) -> bool {
        self.0.is_none()
    }

    /// Returns packets per second; `None` if the rate is unlimited.
    pub fn pps(self) -> Option<u64> {
        self.0
    }

    /// Returns the time at which packet number `sequence` is due, in nanoseconds after the first.
    pub fn due_ns(self, sequence: u64) -> Option<u64> {
        let rate = u128::from(self.0?);
        u64::try_from(u128::from(sequence) * 1_000_000_000 / rate).ok()
    }
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || format!("'{text}': give packets a second above 0, as in 5000 or 100k, or max");
        if text == "max" {
            return Ok(Self::MAX);
        }
        let number = text.strip_suffix("pps").or_else(|| text.strip_suffix("/s")).unwrap_or(text);
        match quantity::count(number) {
            Ok(rate) if rate > 0 => Ok(Self(Some(rate))),
            Err(reason) if reason.ends_with(quantity::TOO_LARGE) => Err(reason),
            _ => Err(invalid()),
        }
    }
}

/// Parses a number above 0, as in 5000, 100k or 2M.
pub fn count(text: &str) -> Result<u64, String> {
    match quantity::count(text) {
        Ok(count) if count > 0 => Ok(count),
        Err(reason) if reason.ends_with(quantity::TOO_LARGE) => Err(reason),
        _ => Err(format!("'{text}': give a number above 0, as in 5000 or 100k")),
    }
}

/// Parses a number above 0 that fits into 32 bits.
pub fn count_u32(text: &str) -> Result<u32, String> {
    u32::try_from(count(text)?).map_err(|_| format!("'{text}' is too large: give {} at most", u32::MAX))
}

/// Parses the packet rate of a benchmark, at most ten million per second.
pub fn rate_pps(text: &str) -> Result<u32, String> {
    const MAX: u64 = 10_000_000;
    match text.parse::<Rate>()?.pps() {
        Some(rate) if rate <= MAX => Ok(rate as u32),
        _ => Err(format!("'{text}': give 1 to {MAX} packets a second")),
    }
}

/// Parses a number of bytes, as in 4096, 100k (of 1000 bytes), 64KiB or 10GiB.
pub fn bytes(text: &str) -> Result<u64, String> {
    quantity::bytes(text, 1)
}

/// Parses a size, in MiB if it has no unit, and returns bytes.
pub fn mebibytes(text: &str) -> Result<u64, String> {
    quantity::bytes(text, 1 << 20)
}

/// Parses a size, in KiB if it has no unit (tcpdump's -B), and returns bytes.
pub fn kibibytes(text: &str) -> Result<u64, String> {
    quantity::bytes(text, 1 << 10)
}

/// Parses a size, in millions of bytes if it has no unit (tcpdump's -C), and returns bytes.
pub fn megabytes(text: &str) -> Result<u64, String> {
    quantity::bytes(text, 1_000_000)
        .and_then(|bytes| if bytes > 0 { Ok(bytes) } else { Err("give a size above 0".into()) })
}

/// Parses an address and a port to connect to. `:PORT` is a port of 127.0.0.1; names are resolved.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    resolve(text, "127.0.0.1")
}

/// Parses an address and a port to listen on. `:PORT` listens on every IPv4 address; names are
/// resolved.
pub fn listen(text: &str) -> Result<SocketAddr, String> {
    resolve(text, "0.0.0.0")
}

/// Parses the address and port of a local service. A port alone or `:PORT` is a port of 127.0.0.1.
pub fn local(text: &str) -> Result<SocketAddr, String> {
    match text.parse::<u16>() {
        Ok(port) => Ok(([127, 0, 0, 1], port).into()),
        Err(_) => resolve(text, "127.0.0.1"),
    }
}

fn resolve(text: &str, host: &str) -> Result<SocketAddr, String> {
    const EXPECTED: &str = "give ADDRESS:PORT, as in 127.0.0.1:3128, [::1]:3128, localhost:3128 or :3128";
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let Some((name, port)) = text.rsplit_once(':') else { return Err(EXPECTED.into()) };
    // Without brackets the last group of an IPv6 address would be taken for the port.
    if name.contains(':') || port.parse::<u16>().is_err() {
        return Err(EXPECTED.into());
    }
    let port = port.parse().unwrap_or_default();
    let name = if name.is_empty() { host } else { name };
    let found =
        (name, port).to_socket_addrs().map_err(|error| format!("look up {name}: {error}; {EXPECTED}"))?;
    let all: Vec<SocketAddr> = found.collect();
    // Prefer IPv4: more programs listen only on IPv4 than only on IPv6.
    all.iter()
        .find(|address| address.is_ipv4())
        .or(all.first())
        .copied()
        .ok_or_else(|| format!("look up {name}: it has no address"))
}

/// Returns HOST:PORT with `localhost` in place of an empty host.
pub fn host_and_port(text: &str) -> String {
    if text.starts_with(':') { format!("localhost{text}") } else { text.to_owned() }
}

/// Parses a time above 0: seconds, fractions allowed, or with a unit as in 500ms, 10s, 5m, 2h, 1d.
pub fn seconds(text: &str) -> Result<Duration, String> {
    quantity::seconds(text)
}

/// Parses a time, which may be 0.
pub fn seconds_or_none(text: &str) -> Result<Duration, String> {
    if matches!(text, "0" | "0s") { Ok(Duration::ZERO) } else { seconds(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_ranges_are_joined_in_a_list() {
        assert_eq!("0,2,5-7".parse::<NumberList>().unwrap().0, [0, 2, 5, 6, 7]);
    }

    #[test]
    fn malformed_lists_are_refused() {
        for bad in ["", "a", "1-", "3-2", "0,0", "1-5,2", "-1", "4294967296", "0-4000000000"] {
            assert!(bad.parse::<NumberList>().is_err(), "{bad}");
        }
    }

    #[test]
    fn packets_are_due_at_equal_intervals() {
        let rate: Rate = "1000000".parse().unwrap();
        assert_eq!(rate.due_ns(3), Some(3000));
        assert_eq!("max".parse::<Rate>().unwrap().due_ns(3), None);
        assert!("0".parse::<Rate>().is_err() && "fast".parse::<Rate>().is_err());
    }

    /// After one delay the sender still sends as many frames in a second as the rate requires.
    #[test]
    fn delayed_frames_catch_up_with_their_rate() {
        const CALL_NS: u64 = 300;
        for (pps, delay_ns) in [(5000, 50_000_000), (1_000_000, 3_000_000), (7, 0)] {
            let rate: Rate = pps.to_string().parse().unwrap();
            let (mut now_ns, mut sent) = (0, 0_u64);
            while now_ns < 1_000_000_000 {
                let due_ns = rate.due_ns(sent).unwrap();
                assert_eq!(due_ns, sent * 1_000_000_000 / pps);
                now_ns = due_ns.max(now_ns + CALL_NS) + if sent == pps / 3 { delay_ns } else { 0 };
                sent += 1;
            }
            assert!(sent.abs_diff(pps) <= 1, "{sent} of {pps}");
        }
    }

    #[test]
    fn rates_counts_and_sizes_have_units() {
        for (text, pps) in
            [("100k", 100_000), ("1.5M", 1_500_000), ("2G", 2_000_000_000), ("7kpps", 7000), ("9/s", 9)]
        {
            assert_eq!(text.parse::<Rate>().unwrap().pps(), Some(pps), "{text}");
        }
        assert_eq!((count("10k"), count("7")), (Ok(10_000), Ok(7)));
        assert_eq!(bytes("100k"), Ok(100_000));
        assert_eq!((mebibytes("8"), mebibytes("512KiB")), (Ok(8 << 20), Ok(512 << 10)));
        assert_eq!(
            (kibibytes("4096"), megabytes("2"), megabytes("1MiB")),
            (Ok(4 << 20), Ok(2_000_000), Ok(1 << 20))
        );
        for bad in ["", "k", "-1", "1.2.3", "10XB", "10 0", "99999999999TiB", "1e3", "1 k b"] {
            assert!(bytes(bad).is_err() && count(bad).is_err() && bad.parse::<Rate>().is_err(), "{bad}");
        }
        for large in ["99999999999999999999999", "99999999999TiB", "18446744073709551616"] {
            assert!(bytes(large).unwrap_err().ends_with("it is too large"), "{large}");
        }
        assert!(count("0").is_err() && megabytes("0").is_err() && rate_pps("max").is_err());
    }

    #[test]
    fn address_without_a_port_is_refused() {
        assert_eq!(address("[::1]:3128").unwrap().port(), 3128);
        for bad in ["3128", "::1", "127.0.0.1", ":65536", "localhost:http", ":"] {
            assert!(address(bad).unwrap_err().contains("as in 127.0.0.1:3128"), "{bad}");
        }
    }

    #[test]
    fn name_or_port_alone_is_an_address() {
        assert_eq!(address(":9000").unwrap(), "127.0.0.1:9000".parse().unwrap());
        assert_eq!(listen(":9000").unwrap(), "0.0.0.0:9000".parse().unwrap());
        let named = address("localhost:9000").unwrap();
        assert!(named.ip().is_loopback() && named.port() == 9000);
        assert_eq!(
            (host_and_port(":9000"), host_and_port("there:1")),
            ("localhost:9000".into(), "there:1".into())
        );
    }

    #[test]
    fn duration_of_0_is_accepted_where_it_means_none() {
        assert_eq!(
            (seconds_or_none("0s"), seconds_or_none("1m")),
            (Ok(Duration::ZERO), Ok(Duration::from_mins(1)))
        );
        assert!(seconds("0s").is_err());
    }
}
