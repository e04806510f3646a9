//! Parsers of command line values with units or a structure.
//!
//! Every command uses these or those of `strait-program`, so that `10s`, `100k`, `10GiB` and
//! `:9000` have one meaning in all options.

use clap::builder::TypedValueParser;
use strait_capture::{Path, Wait};
use strait_packet::ethernet::MacAddress;
pub(crate) use strait_program::parse::{
    NumberList, Rate, bytes, count, count_u32, host_and_port, kibibytes, listen, local, mebibytes, megabytes,
    one_of, seconds, seconds_or_none,
};

/// Returns the parser of a capture path's name.
pub(crate) fn path() -> impl TypedValueParser<Value = Path> {
    one_of(Path::ALL.iter().map(|path| (*path, path.name(), path.description())))
}

/// Returns the parser of a wait policy's name.
pub(crate) fn wait() -> impl TypedValueParser<Value = Wait> {
    one_of(Wait::ALL.iter().map(|wait| (*wait, wait.name(), wait.description())))
}

/// Parses a MAC address, as in 02:00:00:00:00:01.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mac_address_has_six_octets() {
        assert_eq!(mac("02:0:a:B:ff:01").unwrap(), MacAddress([2, 0, 10, 11, 255, 1]));
        for bad in
            ["", "02:00:00:00:00", "02:00:00:00:00:01:02", "002:0:0:0:0:0", "+2:0:0:0:0:0", "gg:0:0:0:0:0"]
        {
            assert!(mac(bad).is_err(), "{bad}");
        }
    }
}
