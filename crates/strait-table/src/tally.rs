//! Count of rows by lane, so that lost rows are charged to the lane that delivered them.

/// Maximum number of lanes counted on their own. A session has fewer; the rest is counted with the
/// last one.
const LANES_MAX: usize = 4096;

/// Rows by lane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    counts: Vec<(u32, u64)>,
}

impl Tally {
    /// Counts `rows` rows of a lane.
    pub fn add(&mut self, lane: u32, rows: u64) {
        let is_full = self.counts.len() >= LANES_MAX;
        let last = self.counts.len().saturating_sub(1);
        let mut entries = self.counts.iter_mut().enumerate();
        match entries.find(|(i, (counted, _))| *counted == lane || is_full && *i == last) {
            Some((_, (_, count))) => *count += rows,
            None => self.counts.push((lane, rows)),
        }
    }

    /// Adds the counts of another tally.
    pub fn add_all(&mut self, other: &Self) {
        other.counts.iter().for_each(|&(lane, rows)| self.add(lane, rows));
    }

    /// Returns the rows that were counted since an earlier state of this tally.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let later = |&(lane, rows): &(u32, u64)| (lane, rows.saturating_sub(earlier.of(lane)));
        Self { counts: self.counts.iter().map(later).collect() }
    }

    /// Returns the rows of a lane.
    pub fn of(&self, lane: u32) -> u64 {
        self.counts.iter().find(|(counted, _)| *counted == lane).map_or(0, |(_, count)| *count)
    }

    /// Returns the rows of all lanes.
    pub fn total(&self) -> u64 {
        self.counts.iter().map(|(_, count)| count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_counted_by_lane() {
        let mut tally = Tally::default();
        for (lane, rows) in [(3, 2), (0, 5), (3, 1)] {
            tally.add(lane, rows);
        }
        let mut sum = tally.clone();
        sum.add_all(&tally);
        assert_eq!((sum.of(3), sum.of(0), sum.of(1), sum.total()), (6, 10, 0, 16));
        sum.add(7, 1);
        let later = sum.since(&tally);
        assert_eq!((later.of(3), later.of(0), later.of(7), later.total()), (3, 5, 1, 9));
    }
}
