//! Values on the command line that are more than a number: lists of queues, sizes, rates.

use std::net::SocketAddr;
use std::str::FromStr;

use strait_capture::Queues;
use strait_packet::ethernet::MacAddress;

/// Numbers and ranges: `0,2,5-7`. Each number once.
#[derive(Clone, Debug)]
pub(crate) struct NumberList(pub(crate) Vec<u32>);

impl FromStr for NumberList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse()? {
            Queues::These(numbers) => Ok(Self(numbers)),
            Queues::Default | Queues::All => Err(format!("'{text}' is not a list of numbers")),
        }
    }
}

/// Packets a second: a number, or `max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rate(Option<u64>);

impl Rate {
    /// No pace: as fast as it goes.
    pub(crate) const MAX: Self = Self(None);

    /// Whether there is no pace to keep.
    pub(crate) fn is_max(self) -> bool {
        self.0.is_none()
    }

    /// Packets a second, if there is a pace to keep.
    pub(crate) fn pps(self) -> Option<u64> {
        self.0
    }

    /// When packet number `sequence` is due, in nanoseconds after the first.
    pub(crate) fn due_ns(self, sequence: u64) -> Option<u64> {
        let rate = u128::from(self.0?);
        u64::try_from(u128::from(sequence) * 1_000_000_000 / rate).ok()
    }
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            _ if text == "max" => Ok(Self::MAX),
            Ok(0) | Err(_) => Err(format!("'{text}': give a number of packets a second above 0, or max")),
            Ok(rate) => Ok(Self(Some(rate))),
        }
    }
}

/// A MAC address as in 02:00:00:00:00:01.
pub(crate) fn mac(text: &str) -> Result<MacAddress, String> {
    let wrong = || format!("'{text}' is not a MAC address; write it as in 02:00:00:00:00:01");
    let mut octets = [0; 6];
    let mut parts = text.split(':');
    for octet in &mut octets {
        let part = parts.next().filter(|part| (1..=2).contains(&part.len())).ok_or_else(wrong)?;
        if !part.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        *octet = u8::from_str_radix(part, 16).map_err(|_| wrong())?;
    }
    if parts.next().is_none() { Ok(MacAddress(octets)) } else { Err(wrong()) }
}

/// An address and a port.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "give ADDRESS:PORT, as in 127.0.0.1:3128 or [::1]:3128".to_owned())
}

/// A positive time in seconds, fractions allowed.
pub(crate) fn seconds(text: &str) -> Result<std::time::Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("'{text}' is not a number of seconds"))?;
    match std::time::Duration::try_from_secs_f64(seconds) {
        Ok(duration) if !duration.is_zero() && duration <= DURATION_MAX => Ok(duration),
        _ => Err(format!("give more than 0 and at most {} seconds", DURATION_MAX.as_secs())),
    }
}

/// The same, or 0.
pub(crate) fn seconds_or_none(text: &str) -> Result<std::time::Duration, String> {
    if text == "0" { Ok(std::time::Duration::ZERO) } else { seconds(text) }
}

/// Ten years.
const DURATION_MAX: std::time::Duration = std::time::Duration::from_hours(87_600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_numbers_make_one_list() {
        assert_eq!("0,2,5-7".parse::<NumberList>().unwrap().0, [0, 2, 5, 6, 7]);
    }

    #[test]
    fn what_is_not_a_list_is_told() {
        for bad in ["", "a", "1-", "3-2", "0,0", "1-5,2", "-1", "4294967296", "0-4000000000"] {
            assert!(bad.parse::<NumberList>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_rate_spaces_packets_evenly() {
        let rate: Rate = "1000000".parse().unwrap();
        assert_eq!(rate.due_ns(3), Some(3000));
        assert_eq!("max".parse::<Rate>().unwrap().due_ns(3), None);
        assert!("0".parse::<Rate>().is_err() && "fast".parse::<Rate>().is_err());
    }

    #[test]
    fn a_mac_address_has_six_octets() {
        assert_eq!(mac("02:0:a:B:ff:01").unwrap(), MacAddress([2, 0, 10, 11, 255, 1]));
        for bad in
            ["", "02:00:00:00:00", "02:00:00:00:00:01:02", "002:0:0:0:0:0", "+2:0:0:0:0:0", "gg:0:0:0:0:0"]
        {
            assert!(mac(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_address_has_a_port() {
        assert_eq!(address("[::1]:3128").unwrap().port(), 3128);
        for bad in ["3128", ":3128", "localhost:3128", "::1", "127.0.0.1"] {
            assert!(address(bad).unwrap_err().contains("as in 127.0.0.1:3128"), "{bad}");
        }
    }

    #[test]
    fn a_duration_is_positive_and_finite() {
        assert_eq!(seconds("0.5").unwrap(), std::time::Duration::from_millis(500));
        for bad in ["0", "-1", "nan", "inf", "x", "1e30"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}
