//! Checks of messages against the lines below a step.

use super::message::{Body, Head, parts};
use super::value::{Variables, bytes, number, pattern, shown};

/// Line below a step, with its number.
pub(super) type Line = (usize, String);

/// Returns the bytes of all body lines; None if there are none.
pub(super) fn expected_bytes(below: &[Line], variables: &Variables) -> Result<Option<Vec<u8>>, String> {
    let mut expected: Option<Vec<u8>> = None;
    for (_, line) in below {
        if let Some(bytes) = bytes(line, variables) {
            expected.get_or_insert_default().extend(bytes?);
        }
    }
    Ok(expected)
}

/// Checks a message against the lines below a step. Without body lines any body is accepted.
pub(super) fn check(
    head: &Head,
    body: Option<&Body>,
    below: &[Line],
    variables: &Variables,
) -> Result<(), String> {
    let mut expected_parts = Vec::new();
    for (_, line) in below {
        match line.as_bytes().first() {
            Some(b'=' | b'"' | b'*') => {}
            Some(b'!') => absent(head, line[1..].trim())?,
            Some(b'+') => trailer(body, &variables.replace(line[1..].trim()))?,
            Some(b'&') => expected_parts.push(line[1..].trim()),
            _ => field(head, &variables.replace(line))?,
        }
    }
    let received = body.map_or(&[][..], |body| body.bytes.as_slice());
    if let Some(expected) = expected_bytes(below, variables)?
        && expected != received
    {
        let differs = expected.iter().zip(received).position(|(one, other)| one != other);
        let from = differs.unwrap_or(expected.len().min(received.len()));
        return Err(format!(
            "the body differs from byte {from}: expected {}, got {}",
            shown(&expected),
            shown(received)
        ));
    }
    if expected_parts.is_empty() { Ok(()) } else { check_parts(head, received, &expected_parts) }
}

fn absent(head: &Head, name: &str) -> Result<(), String> {
    head.get(name).map_or(Ok(()), |value| Err(format!("{name} is present: {value}; {}", all(head))))
}

/// Checks `Name: value`, `Name: ~ substring`, `Name: ^ absent substring`, or `Name: ?` for any
/// value.
fn field(head: &Head, line: &str) -> Result<(), String> {
    let (name, expected) =
        line.split_once(':').ok_or_else(|| format!("not a field or a body line: {line}"))?;
    let expected = expected.trim();
    let got = head.get(name).ok_or_else(|| format!("{name} is missing; {}", all(head)))?;
    let is_match = match (expected.strip_prefix("~ "), expected.strip_prefix("^ ")) {
        (Some(part), _) => got.contains(part),
        (_, Some(part)) => !got.contains(part),
        _ => expected == "?" || got == expected,
    };
    if is_match { Ok(()) } else { Err(format!("{name} is {got}; {}", all(head))) }
}

/// Checks `Name: value`, or `!Name`.
fn trailer(body: Option<&Body>, line: &str) -> Result<(), String> {
    let trailers = body.map_or(&[][..], |body| body.trailers.as_slice());
    if let Some(name) = line.strip_prefix('!') {
        let is_present = trailers.iter().any(|(other, _)| other.eq_ignore_ascii_case(name));
        return if is_present { Err(format!("trailer {name} is present: {trailers:?}")) } else { Ok(()) };
    }
    let (name, expected) = line.split_once(':').ok_or("not a field in a trailer line")?;
    let is_expected =
        |(other, value): &(String, String)| other.eq_ignore_ascii_case(name) && value == expected.trim();
    if trailers.iter().any(is_expected) {
        Ok(())
    } else {
        Err(format!("no trailer {line}, but {trailers:?}"))
    }
}

/// Checks `& 0-4/26 = text` or `& 0-4/26 *`; the asterisk means those bytes of the pattern.
fn check_parts(head: &Head, received: &[u8], expected: &[&str]) -> Result<(), String> {
    let kind = head.get("content-type").unwrap_or_default();
    let parts = parts(&kind, received)?;
    if parts.len() != expected.len() {
        return Err(format!("{} parts: {}", parts.len(), shown(received)));
    }
    for ((part, bytes), line) in parts.iter().zip(expected) {
        let (range, text) = line.split_once(' ').ok_or("a part without its bytes")?;
        let content_range = part.get("content-range").unwrap_or_default();
        let expected = match text.strip_prefix("= ") {
            Some(text) => text.as_bytes().to_vec(),
            None => pattern_of(range)?,
        };
        if content_range != format!("bytes {range}") || *bytes != expected {
            return Err(format!("part {content_range} of {}, expected {line}", shown(bytes)));
        }
    }
    Ok(())
}

fn pattern_of(range: &str) -> Result<Vec<u8>, String> {
    let (first, last) = range.split('/').next().and_then(|range| range.split_once('-')).ok_or("no range")?;
    let (first, last) = (number(first)?, number(last)?);
    Ok(pattern(first, last + 1 - first))
}

/// Formats a head for a message.
pub(super) fn all(head: &Head) -> String {
    let lines = head.fields.iter().map(|(name, value)| format!(" | {name}: {value}"));
    format!("got {}{}", head.first, lines.collect::<String>())
}
