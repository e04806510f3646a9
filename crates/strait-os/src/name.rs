//! Names of interfaces, checked before they reach a system call.

use crate::{Error, Kind, Result};

/// Maximum length of an alternative name (`ALTIFNAMSIZ` of linux/if.h, less its NUL).
const NAME_LEN_MAX: usize = 127;

/// Rejects names that no interface can have, before they reach a system call.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let bad = |byte: u8| byte == 0 || byte == b'/' || byte.is_ascii_whitespace();
    if name.is_empty() || name.len() > NAME_LEN_MAX || name.bytes().any(bad) {
        let cause = "not an interface name; `ip link` lists them";
        return Err(Error::new(Kind::Usage, "find", format!("{name:?}"), cause));
    }
    Ok(())
}
