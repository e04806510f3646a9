//! Range requests (RFC 9110, section 14).

use std::ops::Range;

use smallvec::SmallVec;

/// Ranges of a request at most: more are an attack (RFC 9110, section 17.15), and answered as if there were none.
pub const RANGES_MAX: usize = 16;

/// What is asked for of a representation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// All of it.
    Whole,
    /// These parts, in the order in which they are asked for: at least one, none empty, none over another.
    Parts(SmallVec<[Range<u64>; 1]>),
    /// Nothing that there is: 416.
    Unsatisfiable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spec {
    From(u64),
    FromTo(u64, u64),
    Last(u64),
}

/// What a Range field asks for of `length` bytes. One that is malformed, in other units or of too many parts is as none (RFC 9110,
/// section 14.2).
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

/// A number too large to be told is larger than anything there is.
fn number(digits: &str) -> Option<u64> {
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().unwrap_or(u64::MAX))
}

impl Spec {
    /// The bytes of `length` that it is about; `None` if there are none.
    fn of(self, length: u64) -> Option<Range<u64>> {
        let range = match self {
            Self::From(first) => first..length,
            Self::FromTo(first, last) => first..last.saturating_add(1).min(length),
            Self::Last(count) => length.saturating_sub(count)..length,
        };
        (range.start < range.end).then_some(range)
    }
}

/// Parts that touch or lie over each other become one (RFC 9110, section 15.3.7.2), where the first of them stood.
fn joined(parts: SmallVec<[Range<u64>; 1]>) -> SmallVec<[Range<u64>; 1]> {
    let mut joined: SmallVec<[Range<u64>; 1]> = SmallVec::new();
    for part in parts {
        let mut part = part;
        let mut place = joined.len();
        // A part that grows may reach the next.
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

/// The Content-Range of a part (RFC 9110, section 14.4).
pub fn content_range(part: &Range<u64>, length: u64) -> String {
    format!("bytes {}-{}/{length}", part.start, part.end.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The first byte of each part and the one behind its last.
    fn parts(range: &str, length: u64) -> Vec<(u64, u64)> {
        match wanted(range, length) {
            Wanted::Parts(parts) => parts.iter().map(|part| (part.start, part.end)).collect(),
            other => panic!("{range}: {other:?}"),
        }
    }

    #[test]
    fn parts_are_what_the_rfc_says() {
        // RFC 9110 s14.1.2's examples, of 10,000 bytes.
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
    fn what_is_malformed_is_as_none_and_what_is_not_there_is_told() {
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
        /// The bytes are those that are asked for, none twice and no part empty.
        #[test]
        fn joined_parts_are_the_same_bytes(asked in prop::collection::vec((0..40_u64, 0..12_u64), 1..8)) {
            let list: Vec<_> = asked.iter().map(|(first, more)| format!("{first}-{}", first + more)).collect();
            let parts = parts(&format!("bytes={}", list.join(",")), 100);
            let mut got: Vec<_> = parts.iter().flat_map(|(start, end)| *start..*end).collect();
            let mut expected: Vec<_> = asked.iter().flat_map(|(first, more)| *first..=first + more).collect();
            got.sort_unstable();
            expected.sort_unstable();
            expected.dedup();
            prop_assert_eq!(got, expected);
            prop_assert!(parts.iter().all(|(start, end)| start < end));
        }
    }
}
