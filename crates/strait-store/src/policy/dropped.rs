//! Numbers of requests of dropped objects, for their next admission.

/// Counters for each remembered object.
const COUNTERS_PER_OBJECT: usize = 16;
const COUNTERS_MIN: usize = 1 << 16;
/// Counters of one cache line; those of an object lie in one line.
const LINE: usize = 64;
/// Counters of an object. They are shared with others, so the lowest of them is the estimate.
const ROWS: u32 = 4;

/// Approximate map from an object's hash to its number of requests: a count-min sketch. An estimate
/// can be too high, never too low, except after an aging.
#[derive(Clone, Debug)]
pub struct Dropped {
    counters: Vec<u8>,
}

impl Default for Dropped {
    fn default() -> Self {
        Self { counters: vec![0; COUNTERS_MIN] }
    }
}

impl Dropped {
    /// Returns the number of requests of an object, or 0.
    pub fn requests(&self, hash: u64) -> u8 {
        self.places(hash).map(|place| self.counters[place]).min().unwrap_or(0)
    }

    /// Remembers the number of requests of an object.
    pub fn remember(&mut self, hash: u64, requests: u8) {
        for place in self.places(hash) {
            let counter = &mut self.counters[place];
            *counter = requests.max(*counter);
        }
    }

    /// Halves all numbers.
    pub fn age(&mut self) {
        self.counters.iter_mut().for_each(|counter| *counter /= 2);
    }

    /// Grows for a cache of that many objects.
    pub fn grow(&mut self, objects: usize) {
        let wanted = (objects * COUNTERS_PER_OBJECT).max(COUNTERS_MIN).next_power_of_two();
        // Both halves of a doubled table begin with the counters of the former one: one more bit of
        // the hash selects the line.
        while self.counters.len() < wanted {
            self.counters.extend_from_within(..);
        }
    }

    /// Returns the places of an object's counters.
    fn places(&self, hash: u64) -> impl Iterator<Item = usize> + use<> {
        let line = (hash as usize).wrapping_mul(LINE) & (self.counters.len() - 1);
        (0..ROWS).map(move |row| line + (hash >> (40 + 6 * row)) as usize % LINE)
    }
}
