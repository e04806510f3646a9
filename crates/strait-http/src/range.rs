//! Range requests (RFC 9110, section 14).

use std::ops::Range;

use smallvec::SmallVec;

/// Limit of ranges in a request. More are an attack (RFC 9110, section 17.15), so the Range field
/// is then ignored.
pub const RANGES_MAX: usize = 16;

/// Result of evaluating a Range field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The whole representation.
    Whole,
    /// One or more non-empty parts without overlap, in the requested order.
    Parts(SmallVec<[Range<u64>; 1]>),
    /// No range lies within the representation: 416.
    Unsatisfiable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spec {
    From(u64),
    FromTo(u64, u64),
    Last(u64),
}

/// Evaluates a Range field for a representation of `length` bytes. A field that is malformed, has
/// other units or too many ranges is ignored (RFC 9110, section 14.2).
pub fn wanted(range: &str, length: u64) -> Wanted {
    let Some(specs) = specs(range) else { return Wanted::Whole };
    let parts: SmallVec<[Range<u64>; 1]> = specs.iter().filter_map(|spec| spec.of(length)).collect();
    if parts.is_empty() {
        return Wanted::Unsatisfiable;
    }
    Wanted::Parts(joined(parts))
}

fn specs(range: &str) -> Option<SmallVec<[Spec; 1]>> {
    let (unit, set) = range.split_once('=')?;
    if !unit.eq_ignore_ascii_case("bytes") {
        return None;
    }
    let mut specs = SmallVec::new();
    for element in crate::fields::split_list(set) {
        if specs.len() == RANGES_MAX {
            return None;
        }
        specs.push(spec(element)?);
    }
    (!specs.is_empty()).then_some(specs)
}

fn spec(element: &str) -> Option<Spec> {
    let (first, last) = element.split_once('-')?;
    match (number(first), number(last)) {
        (Some(first), Some(last)) if first <= last => Some(Spec::FromTo(first, last)),
        (Some(first), None) if last.is_empty() => Some(Spec::From(first)),
        (None, Some(last)) if first.is_empty() => Some(Spec::Last(last)),
        _ => None,
    }
}

/// Parses a number; one beyond 64 bits counts as the largest.
fn number(digits: &str) -> Option<u64> {
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().unwrap_or(u64::MAX))
}

impl Spec {
    /// Bytes of a representation of `length` that the range covers; `None` if there are none.
    fn of(self, length: u64) -> Option<Range<u64>> {
        let range = match self {
            Self::From(first) => first..length,
            Self::FromTo(first, last) => first..last.saturating_add(1).min(length),
            Self::Last(count) => length.saturating_sub(count)..length,
        };
        (range.start < range.end).then_some(range)
    }
}

/// Joins parts that touch or overlap (RFC 9110, section 15.3.7.2). The joined part takes the place
/// of the first.
fn joined(parts: SmallVec<[Range<u64>; 1]>) -> SmallVec<[Range<u64>; 1]> {
    let mut joined: SmallVec<[Range<u64>; 1]> = SmallVec::new();
    for part in parts {
        let mut part = part;
        let mut place = joined.len();
        // A part that grows may reach another one.
        while let Some(other) =
            joined.iter().position(|other| other.start <= part.end && part.start <= other.end)
        {
            let other_part = joined.remove(other);
            part = part.start.min(other_part.start)..part.end.max(other_part.end);
            place = place.min(other).min(joined.len());
        }
        joined.insert(place, part);
    }
    joined
}

/// Content-Range of a part (RFC 9110, section 14.4).
pub fn content_range(part: &Range<u64>, length: u64) -> String {
    format!("bytes {}-{}/{length}", part.start, part.end.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// First byte of each part, and the end after its last byte.
    fn parts(range: &str, length: u64) -> Vec<(u64, u64)> {
        match wanted(range, length) {
            Wanted::Parts(parts) => parts.iter().map(|part| (part.start, part.end)).collect(),
            other => panic!("{range}: {other:?}"),
        }
    }

    #[test]
    fn ranges_are_evaluated_as_in_the_rfc() {
        // Examples of RFC 9110 s14.1.2, of 10,000 bytes.
        assert_eq!(parts("bytes=0-499", 10_000), [(0, 500)]);
        assert_eq!(parts("bytes=-500", 10_000), [(9500, 10_000)]);
        assert_eq!(parts("bytes=9500-", 10_000), [(9500, 10_000)]);
        assert_eq!(parts("bytes= 0-0, -1", 10_000), [(0, 1), (9999, 10_000)]);
        assert_eq!(parts("bytes=500-600,601-999", 10_000), [(500, 1000)]);
        assert_eq!(parts("bytes=500-700,601-999", 10_000), [(500, 1000)]);
        assert_eq!(parts("Bytes=0-99999999999999999999", 10), [(0, 10)]);
        assert_eq!(parts("bytes=-99", 10), [(0, 10)]);
        assert_eq!(parts("bytes=20-30,5-6", 10), [(5, 7)]);
        assert_eq!(parts("bytes=6-7,0-1,2-5", 10), [(0, 8)]);
    }

    #[test]
    fn malformed_ranges_are_ignored_and_unsatisfiable_ones_reported() {
        for range in
            ["bytes", "bytes=", "bytes=-", "bytes=a-b", "bytes=5-4", "bytes=1-2-3", "lines=1-2", "bytes=+1-2"]
        {
            assert_eq!(wanted(range, 10), Wanted::Whole, "{range}");
        }
        let many = format!("bytes={}", "0-0,".repeat(RANGES_MAX + 1));
        assert_eq!(wanted(&many, 10), Wanted::Whole);
        for (range, length) in [("bytes=10-", 10), ("bytes=-0", 10), ("bytes=0-", 0), ("bytes=-5", 0)] {
            assert_eq!(wanted(range, length), Wanted::Unsatisfiable, "{range}");
        }
    }

    proptest! {
        /// The parts cover exactly the requested bytes, each once, and no part is empty.
        #[test]
        fn joined_parts_cover_the_requested_bytes(request in prop::collection::vec((0..40_u64, 0..12_u64), 1..8)) {
            let list: Vec<_> = request.iter().map(|(first, more)| format!("{first}-{}", first + more)).collect();
            let parts = parts(&format!("bytes={}", list.join(",")), 100);
            let mut got: Vec<_> = parts.iter().flat_map(|(start, end)| *start..*end).collect();
            let mut expected: Vec<_> = request.iter().flat_map(|(first, more)| *first..=first + more).collect();
            got.sort_unstable();
            expected.sort_unstable();
            expected.dedup();
            prop_assert_eq!(got, expected);
            prop_assert!(parts.iter().all(|(start, end)| start < end));
        }
    }
}
