//! Counts of requests and hits, and their ratios.

use crate::results::Figures;

/// Requests and hits of a cache.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ratios {
    pub(super) requests: u64,
    pub(super) hits: u64,
    pub(super) requested_bytes: u64,
    pub(super) hit_bytes: u64,
}

impl Ratios {
    /// Counts a request.
    pub(super) fn count(&mut self, bytes: u64, is_hit: bool) {
        self.requests += 1;
        self.requested_bytes += bytes;
        self.hits += u64::from(is_hit);
        self.hit_bytes += if is_hit { bytes } else { 0 };
    }

    /// Returns the ratios of hits.
    pub(super) fn figures(self) -> Figures {
        let percent = |part: u64, all: u64| 100.0 * part as f64 / all.max(1) as f64;
        Figures::from([
            ("hit_percent".to_owned(), percent(self.hits, self.requests)),
            ("hit_bytes_percent".to_owned(), percent(self.hit_bytes, self.requested_bytes)),
        ])
    }

    /// Adds the number of bytes written for each byte of a new object.
    pub(super) fn with_writes(self, new_bytes: u64, moved_bytes: u64) -> Figures {
        let mut figures = self.figures();
        let written = (new_bytes + moved_bytes) as f64 / new_bytes.max(1) as f64;
        figures.insert("bytes_written_per_byte".to_owned(), written);
        figures
    }
}
