//! Trace context of requests: the fields traceparent and tracestate (W3C Trace Context).
//!
//! A trace is a request with all requests that servers make on its behalf. Each of these has a
//! span, and names that of its sender as its parent.

use crate::fields::Fields;

/// Field with the place of a request in its trace.
pub const TRACEPARENT: &str = "traceparent";
/// Field with what systems for traces add to it.
pub const TRACESTATE: &str = "tracestate";

/// Length in bytes of a traceparent of version 00.
const BYTES: usize = 55;
/// Flags that a server forwards: sampled, and random (level 2 of the recommendation).
const KNOWN_FLAGS: u8 = 3;
/// Flag of a trace whose spans are recorded.
const SAMPLED: u8 = 1;
/// Flag of a trace whose number is random.
const RANDOM: u8 = 2;

/// Place of a request in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// Number of the trace; not 0.
    pub trace: u128,
    /// Span of the sender; not 0.
    pub span: u64,
    /// Flags without unknown ones.
    flags: u8,
}

impl TraceContext {
    /// Begins a trace with random numbers, of which each 0 becomes 1.
    pub fn begin(trace: u128, span: u64, is_sampled: bool) -> Self {
        let flags = RANDOM | if is_sampled { SAMPLED } else { 0 };
        Self { trace: trace.max(1), span: span.max(1), flags }
    }

    /// Returns the context of a request; `None` if it has no traceparent, several, or one that is
    /// not valid.
    pub fn of(fields: &Fields<'_>) -> Option<Self> {
        let mut all = fields.all(TRACEPARENT);
        let (only, None) = (all.next()?, all.next()) else { return None };
        Self::parse(only.value)
    }

    /// Parses a traceparent. Those of later versions begin like version 00.
    fn parse(text: &[u8]) -> Option<Self> {
        let (first, rest) = text.split_at_checked(BYTES)?;
        let [version, trace, span, flags] = parts(first)?;
        let (version, flags) = (hex(version)?, hex(flags)?);
        let is_whole = match version {
            0 => rest.is_empty(),
            0xff => false,
            _ => rest.first().is_none_or(|byte| *byte == b'-'),
        };
        let (trace, span) = (hex(trace)?, hex(span)?);
        let flags = flags as u8 & KNOWN_FLAGS;
        (is_whole && trace != 0 && span != 0).then_some(Self { trace, span: span as u64, flags })
    }

    /// Returns the context of a request that follows from this one.
    #[must_use]
    pub fn followed_by(self, span: u64) -> Self {
        Self { span: span.max(1), ..self }
    }

    /// Returns true if the spans of the trace are to be recorded.
    pub fn is_sampled(self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// Returns the flags of traceparent.
    pub fn flags(self) -> u8 {
        self.flags
    }

    /// Returns the value of traceparent, of version 00.
    pub fn value(self) -> String {
        format!("00-{:032x}-{:016x}-{:02x}", self.trace, self.span, self.flags)
    }
}

/// Splits the parts of a traceparent, which have fixed lengths.
fn parts(text: &[u8]) -> Option<[&[u8]; 4]> {
    let mut parts = text.split(|byte| *byte == b'-');
    let all = [parts.next()?, parts.next()?, parts.next()?, parts.next()?];
    (parts.next().is_none() && all.map(<[u8]>::len) == [2, 32, 16, 2]).then_some(all)
}

/// Returns a number of lower-case digits.
fn hex(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |number: u128, digit| {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u128::from(value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::head;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

    fn of(lines: &str) -> Option<TraceContext> {
        let text = format!("GET / HTTP/1.1\r\n{lines}\r\n");
        TraceContext::of(&head::request(text.as_bytes()).unwrap().unwrap().0.fields)
    }

    #[test]
    fn context_is_read_and_written() {
        let context = of(&format!("Traceparent: 00-{TRACE}-b7ad6b7169203331-01\r\n")).unwrap();
        assert_eq!(format!("{:x}", context.trace), TRACE[1..]);
        assert!(context.is_sampled() && context.span == 0xb7ad_6b71_6920_3331);
        assert_eq!(context.followed_by(0x1f).value(), format!("00-{TRACE}-000000000000001f-01"));
        assert_eq!(
            TraceContext::begin(0, 0, true).value(),
            "00-00000000000000000000000000000001-0000000000000001-03"
        );
    }

    #[test]
    fn flags_that_are_unknown_are_cleared() {
        let flags = |flags: &str| {
            let context = of(&format!("traceparent: 00-{TRACE}-b7ad6b7169203331-{flags}\r\n")).unwrap();
            context.value().split_off(53)
        };
        assert_eq!(["ff", "fc", "02", "01"].map(flags), ["03", "00", "02", "01"]);
    }

    #[test]
    fn later_versions_begin_like_the_first() {
        let span = "b7ad6b7169203331";
        for (value, is_valid) in [
            (format!("cc-{TRACE}-{span}-01"), true),
            (format!("cc-{TRACE}-{span}-01-what"), true),
            (format!("cc-{TRACE}-{span}-01.what"), false),
            (format!("ff-{TRACE}-{span}-01"), false),
            (format!("00-{TRACE}-{span}-01-"), false),
        ] {
            assert_eq!(of(&format!("traceparent: {value}\r\n")).is_some(), is_valid, "{value}");
        }
    }

    #[test]
    fn wrong_contexts_are_none() {
        let right = format!("traceparent: 00-{TRACE}-b7ad6b7169203331-01\r\n");
        for lines in [
            String::new(),
            right.repeat(2),
            right.replace("0af7", "0AF7"),
            right.replace("0af7", "0ag7"),
            right.replace(TRACE, &"0".repeat(32)),
            right.replace("b7ad6b7169203331", &"0".repeat(16)),
            right.replace("-01", "-0x"),
            right.replace("00-", "0-0"),
            right.replace("-b7ad6b", "b-7ad6b"),
            right.replace("-01", "-1"),
            "traceparent: \r\n".to_owned(),
        ] {
            assert_eq!(of(&lines), None, "{lines}");
        }
        assert!(of(&right).is_some());
    }
}
