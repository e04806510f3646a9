//! Checks of messages against the lines below a step.

use super::message::{Body, Head, parts};
use super::value::{Variables, bytes, number, pattern, shown};

/// Line below a step, with its number.
pub(super) type Line = (usize, String);

/// Returns the bytes of all body lines; None if there are none.
pub(super) fn wanted_bytes(below: &[Line], variables: &Variables) -> Result<Option<Vec<u8>>, String> {
    let mut wanted: Option<Vec<u8>> = None;
    for (_, line) in below {
        if let Some(some) = bytes(line, variables) {
            wanted.get_or_insert_default().extend(some?);
        }
    }
    Ok(wanted)
}

/// Checks a message against the lines below a step. Without body lines any body is accepted.
pub(super) fn check(
    head: &Head,
    body: Option<&Body>,
    below: &[Line],
    variables: &Variables,
) -> Result<(), String> {
    let mut parts_wanted = Vec::new();
    for (_, line) in below {
        match line.as_bytes().first() {
            Some(b'=' | b'"' | b'*') => {}
            Some(b'!') => absent(head, line[1..].trim())?,
            Some(b'+') => trailer(body, &variables.replace(line[1..].trim()))?,
            Some(b'&') => parts_wanted.push(line[1..].trim()),
            _ => field(head, &variables.replace(line))?,
        }
    }
    let received = body.map_or(&[][..], |body| body.bytes.as_slice());
    if let Some(wanted) = wanted_bytes(below, variables)?
        && wanted != received
    {
        let differs = wanted.iter().zip(received).position(|(one, other)| one != other);
        let from = differs.unwrap_or(wanted.len().min(received.len()));
        return Err(format!(
            "the body differs from byte {from}: wanted {}, got {}",
            shown(&wanted),
            shown(received)
        ));
    }
    if parts_wanted.is_empty() { Ok(()) } else { check_parts(head, received, &parts_wanted) }
}

fn absent(head: &Head, name: &str) -> Result<(), String> {
    head.get(name).map_or(Ok(()), |value| Err(format!("{name} is there: {value}; {}", all(head))))
}

/// Checks `Name: value`, `Name: ~ substring`, `Name: ^ absent substring`, or `Name: ?` for any
/// value.
fn field(head: &Head, line: &str) -> Result<(), String> {
    let (name, wanted) = line.split_once(':').ok_or_else(|| format!("a line that says nothing: {line}"))?;
    let wanted = wanted.trim();
    let got = head.get(name).ok_or_else(|| format!("{name} is missing; {}", all(head)))?;
    let is_right = match (wanted.strip_prefix("~ "), wanted.strip_prefix("^ ")) {
        (Some(part), _) => got.contains(part),
        (_, Some(part)) => !got.contains(part),
        _ => wanted == "?" || got == wanted,
    };
    if is_right { Ok(()) } else { Err(format!("{name} is {got}; {}", all(head))) }
}

/// Checks `Name: value`, or `!Name`.
fn trailer(body: Option<&Body>, line: &str) -> Result<(), String> {
    let trailers = body.map_or(&[][..], |body| body.trailers.as_slice());
    if let Some(name) = line.strip_prefix('!') {
        let is_there = trailers.iter().any(|(other, _)| other.eq_ignore_ascii_case(name));
        return if is_there { Err(format!("trailer {name} is there: {trailers:?}")) } else { Ok(()) };
    }
    let (name, wanted) = line.split_once(':').ok_or("a trailer that is no field")?;
    let is_it =
        |(other, value): &(String, String)| other.eq_ignore_ascii_case(name) && value == wanted.trim();
    if trailers.iter().any(is_it) { Ok(()) } else { Err(format!("no trailer {line}, but {trailers:?}")) }
}

/// Checks `& 0-4/26 = text` or `& 0-4/26 *`; the asterisk means those bytes of the pattern.
fn check_parts(head: &Head, received: &[u8], wanted: &[&str]) -> Result<(), String> {
    let kind = head.get("content-type").unwrap_or_default();
    let parts = parts(&kind, received)?;
    if parts.len() != wanted.len() {
        return Err(format!("{} parts: {}", parts.len(), shown(received)));
    }
    for ((part, bytes), wanted) in parts.iter().zip(wanted) {
        let (range, text) = wanted.split_once(' ').ok_or("a part without its bytes")?;
        let told = part.get("content-range").unwrap_or_default();
        let expected = match text.strip_prefix("= ") {
            Some(text) => text.as_bytes().to_vec(),
            None => pattern_of(range)?,
        };
        if told != format!("bytes {range}") || *bytes != expected {
            return Err(format!("part {told} of {}, wanted {wanted}", shown(bytes)));
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
