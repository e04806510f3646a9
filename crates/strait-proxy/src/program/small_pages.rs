//! Pages of the memory for a configuration.

use rustix::thread::{disable_transparent_huge_pages, transparent_huge_pages_are_disabled};

/// Keeps the process from getting transparent huge pages until it is dropped
/// (`PR_SET_THP_DISABLE`, prctl(2)).
///
/// A configuration of many certificates consists of small objects between others that are freed
/// as soon as a file is parsed. In huge pages of 2 MiB the gaps stay resident. Buffers of the data
/// path are allocated later, in huge pages.
pub(super) struct SmallPages {
    /// True if huge pages were disabled before.
    were_disabled: bool,
}

impl SmallPages {
    /// Returns `None` if the kernel refuses: the configuration then takes more memory.
    pub(super) fn begin() -> Option<Self> {
        let were_disabled = transparent_huge_pages_are_disabled().ok()?;
        disable_transparent_huge_pages(true).ok()?;
        Some(Self { were_disabled })
    }
}

impl Drop for SmallPages {
    fn drop(&mut self) {
        // The kernel allowed the change before. Without it the process has small pages alone.
        let _ = disable_transparent_huge_pages(self.were_disabled);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_pages_are_as_before_at_the_end() {
        let before = transparent_huge_pages_are_disabled().unwrap();
        let outer = SmallPages::begin().unwrap();
        let inner = SmallPages::begin().unwrap();
        assert!(transparent_huge_pages_are_disabled().unwrap());
        drop(inner);
        assert!(transparent_huge_pages_are_disabled().unwrap());
        drop(outer);
        assert_eq!(transparent_huge_pages_are_disabled().unwrap(), before);
    }
}
