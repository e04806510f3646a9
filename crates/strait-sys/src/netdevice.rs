//! Calls on network devices by name and index (netdevice(7), if_nameindex(3)).
//!
//! `ethtool` and `interface` of strait-os use them and give the bytes their meaning.

use std::os::fd::{AsRawFd as _, BorrowedFd};

use crate::error::{Error, Result, check};

/// Commands of `SIOCETHTOOL` that read more than a `struct ethtool_value` (linux/ethtool.h).
pub const ETHTOOL_GDRVINFO: u32 = 0x03;
/// See [`ETHTOOL_GDRVINFO`].
pub const ETHTOOL_GSET: u32 = 0x01;
/// See [`ETHTOOL_GDRVINFO`].
pub const ETHTOOL_GRINGPARAM: u32 = 0x10;
/// See [`ETHTOOL_GDRVINFO`].
pub const ETHTOOL_GSTRINGS: u32 = 0x1b;
/// See [`ETHTOOL_GDRVINFO`].
pub const ETHTOOL_GSSET_INFO: u32 = 0x37;
/// See [`ETHTOOL_GDRVINFO`].
pub const ETHTOOL_GRXFHINDIR: u32 = 0x38;
/// See [`ETHTOOL_GDRVINFO`].
pub const ETHTOOL_GFEATURES: u32 = 0x3a;
/// See [`ETHTOOL_GDRVINFO`].
pub const ETHTOOL_GCHANNELS: u32 = 0x3c;
/// Command that reads two flags of `struct ethtool_value`.
pub const ETHTOOL_GFLAGS: u32 = 0x25;

/// Commands that read (`G`) and set (`S`) one setting in a `struct ethtool_value`: checksums of
/// received frames.
pub const ETHTOOL_GRXCSUM: u32 = 0x14;
/// See [`ETHTOOL_GRXCSUM`].
pub const ETHTOOL_SRXCSUM: u32 = 0x15;
/// See [`ETHTOOL_GRXCSUM`]: checksums of sent frames.
pub const ETHTOOL_GTXCSUM: u32 = 0x16;
/// See [`ETHTOOL_GTXCSUM`].
pub const ETHTOOL_STXCSUM: u32 = 0x17;
/// See [`ETHTOOL_GRXCSUM`]: scatter-gather.
pub const ETHTOOL_GSG: u32 = 0x18;
/// See [`ETHTOOL_GSG`].
pub const ETHTOOL_SSG: u32 = 0x19;
/// See [`ETHTOOL_GRXCSUM`]: TCP segmentation offload.
pub const ETHTOOL_GTSO: u32 = 0x1e;
/// See [`ETHTOOL_GTSO`].
pub const ETHTOOL_STSO: u32 = 0x1f;
/// See [`ETHTOOL_GRXCSUM`]: generic segmentation offload.
pub const ETHTOOL_GGSO: u32 = 0x23;
/// See [`ETHTOOL_GGSO`].
pub const ETHTOOL_SGSO: u32 = 0x24;
/// See [`ETHTOOL_GRXCSUM`]: generic receive offload.
pub const ETHTOOL_GGRO: u32 = 0x2b;
/// See [`ETHTOOL_GGRO`].
pub const ETHTOOL_SGRO: u32 = 0x2c;

/// String set with the names of the feature bits (`enum ethtool_stringset`).
pub const ETH_SS_FEATURES: u32 = 4;
/// Maximum number of features of a kernel; 7.2 has 59.
pub const FEATURES_MAX: usize = 256;
/// Words of a string, in `struct ethtool_drvinfo` and in a set (`ETH_GSTRING_LEN`).
pub const STRING_WORDS: usize = 8;
/// Words of `struct ethtool_drvinfo`: the command, five strings, 12 reserved bytes, five counts.
pub const DRVINFO_WORDS: usize = 49;
/// Words of `struct ethtool_cmd`, the answer of [`ETHTOOL_GSET`].
pub const CMD_WORDS: usize = 11;
/// Words of a block in `struct ethtool_gfeatures`: available, requested, active, never changed.
pub const FEATURE_BLOCK_WORDS: usize = 4;

/// Commands with a `struct ethtool_value`.
const VALUE_COMMANDS: [u32; 13] = [
    ETHTOOL_GRXCSUM,
    ETHTOOL_SRXCSUM,
    ETHTOOL_GTXCSUM,
    ETHTOOL_STXCSUM,
    ETHTOOL_GSG,
    ETHTOOL_SSG,
    ETHTOOL_GTSO,
    ETHTOOL_STSO,
    ETHTOOL_GGSO,
    ETHTOOL_SGSO,
    ETHTOOL_GGRO,
    ETHTOOL_SGRO,
    ETHTOOL_GFLAGS,
];

/// `ioctl(fd, SIOCETHTOOL, words)` on the interface `name`: the first word is the command, and the
/// kernel writes its answer over the words.
///
/// # Errors
/// EOPNOTSUPP if the driver has no such command, EPERM without the privilege, ENODEV if no
/// interface has that name.
///
/// # Panics
/// If the command is none of those above, or `words` has no room for its whole answer.
pub fn ethtool(fd: BorrowedFd<'_>, name: &str, words: &mut [u32]) -> Result<()> {
    assert!(words.len() >= answer_words(words), "room for the whole answer");
    if name.len() >= libc::IFNAMSIZ {
        return Err(Error::os("ethtool", name, libc::ENODEV));
    }
    let mut request = libc::ifreq {
        ifr_name: [0; libc::IFNAMSIZ],
        ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_data: words.as_mut_ptr().cast() },
    };
    for (to, &from) in request.ifr_name.iter_mut().zip(name.as_bytes()) {
        *to = from as libc::c_char;
    }
    // SAFETY: the request is live. The kernel reads and writes no more at `ifru_data` than the
    // command's structure, for which the assertion above makes room; it copies the request back.
    // The name is shorter than its array and so ends in NUL.
    let returned = unsafe { libc::ioctl(fd.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) };
    check(returned, "ethtool", name).map(drop)
}

/// Returns the words that the kernel may write for the command in `words`: the size of its
/// structure in linux/ethtool.h.
fn answer_words(words: &[u32]) -> usize {
    let word = |index: usize| words.get(index).map_or(0, |&word| word as usize);
    match words[0] {
        ETHTOOL_GDRVINFO => DRVINFO_WORDS,
        ETHTOOL_GSET => CMD_WORDS,
        ETHTOOL_GCHANNELS | ETHTOOL_GRINGPARAM => 9,
        // A count for each requested set.
        ETHTOOL_GSSET_INFO => 4 + (word(2).count_ones() + word(3).count_ones()) as usize,
        // The kernel writes all strings of the set, regardless of the requested number.
        ETHTOOL_GSTRINGS if word(1) == ETH_SS_FEATURES as usize => 3 + STRING_WORDS * FEATURES_MAX,
        // The second word is the number of entries or blocks for which there is room.
        ETHTOOL_GRXFHINDIR => 2 + word(1),
        ETHTOOL_GFEATURES => 2 + FEATURE_BLOCK_WORDS * word(1),
        command if VALUE_COMMANDS.contains(&command) => 2,
        command => panic!("ethtool command {command:#x} has an answer of unknown length"),
    }
}

/// Returns the indices of all interfaces of the calling thread's namespace (if_nameindex(3)).
pub fn indices() -> Result<Vec<u32>> {
    // SAFETY: if_nameindex takes nothing.
    let list = unsafe { libc::if_nameindex() };
    if list.is_null() {
        return Err(Error::last_os("list", "interfaces"));
    }
    let mut indices = Vec::new();
    // SAFETY: the array ends with an index of 0, and is freed once.
    unsafe {
        let mut entry = list;
        while (*entry).if_index != 0 {
            indices.push((*entry).if_index);
            entry = entry.add(1);
        }
        libc::if_freenameindex(list);
    }
    Ok(indices)
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn the_loopback_is_listed() {
        assert!(!indices().unwrap().contains(&0) && !indices().unwrap().is_empty());
    }

    #[test]
    fn room_is_demanded_for_the_whole_answer() {
        for (words, expected) in [
            (&[ETHTOOL_GCHANNELS][..], 9),
            (&[ETHTOOL_GSET], 11),
            (&[ETHTOOL_GSSET_INFO, 0, 1 << ETH_SS_FEATURES, 1], 6),
            (&[ETHTOOL_GRXFHINDIR, 128], 130),
            (&[ETHTOOL_GFEATURES, 2], 10),
            (&[ETHTOOL_GFLAGS], 2),
        ] {
            assert_eq!(answer_words(words), expected, "{words:x?}");
        }
    }

    #[test]
    #[should_panic(expected = "has an answer of unknown length")]
    fn command_with_an_answer_of_unknown_length_is_refused() {
        const ETHTOOL_GSTATS: u32 = 0x1d;
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let _ = ethtool(socket.as_fd(), "lo", &mut [ETHTOOL_GSTATS, 0]);
    }
}
