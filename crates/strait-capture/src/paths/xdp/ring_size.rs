//! Default size of AF_XDP's memory, and a smaller one for a kernel that refuses to lock that much.
//!
//! A size that the user gave is never changed.

use std::fmt::Display;

/// Size in bytes of each queue's UMEM: 5 ms at three million packets a second. Each frame takes a
/// chunk of 2 KiB, however short it is.
const BYTES: usize = 32 << 20;
/// Size in bytes for a single queue, which receives all packets: 11 ms.
const BYTES_ALONE: usize = 64 << 20;

/// Returns the default size in bytes for each of `queues` queues.
pub(super) fn default_bytes(queues: usize) -> usize {
    if queues == 1 { BYTES_ALONE } else { BYTES }
}

/// Returns a smaller size to try if `tried` bytes could not be locked; none if the user `requested`
/// a size.
pub(super) fn smaller_bytes(requested: Option<usize>, tried: usize) -> Option<usize> {
    (requested.is_none() && tried > BYTES).then_some(BYTES)
}

/// Returns the note of a session that got `bytes` instead of `tried`, because of `error`.
pub(super) fn note(tried: usize, bytes: usize, error: &impl Display) -> String {
    format!("{error}: using {} MiB instead of {}", bytes >> 20, tried >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_size_is_halved_once_with_a_note() {
        let tried = default_bytes(1);
        assert_eq!(smaller_bytes(None, tried), Some(32 << 20));
        assert_eq!(smaller_bytes(None, 32 << 20), None, "it would fail alike");
        assert_eq!(smaller_bytes(None, default_bytes(2)), None);
        let note = note(tried, 32 << 20, &"cannot register memory: no buffer space");
        assert_eq!(note, "cannot register memory: no buffer space: using 32 MiB instead of 64");
    }

    #[test]
    fn size_given_by_the_user_is_not_changed() {
        assert_eq!(smaller_bytes(Some(64 << 20), 64 << 20), None);
    }
}
