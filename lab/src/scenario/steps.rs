//! Messages of steps: heads with default fields, unless a line overrides them.

use super::check::{Line, expected_bytes};
use super::message::Framing;
use super::value::{Variables, bytes, date};

/// Framing of a sent message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// With Content-Length.
    Length,
    /// Chunked, one chunk for each line.
    Chunked,
    /// Without a length: the end of the connection ends the body.
    Close,
    /// Head only: other steps send the body, and only the lines may set its length.
    Head,
}

impl Mode {
    /// Returns the mode of a word.
    pub(super) fn of(word: &str) -> Option<Self> {
        match word {
            "chunked" => Some(Self::Chunked),
            "close" => Some(Self::Close),
            "head" => Some(Self::Head),
            _ => None,
        }
    }
}

/// Builds a message from its first line, the fields below, the fields of `usual` that are neither
/// given nor refused by `!Name`, and the body.
pub(super) fn message(
    first: &str,
    usual: &[(&str, String)],
    below: &[Line],
    mode: Mode,
    variables: &Variables,
) -> Result<Vec<u8>, String> {
    let mut head = format!("{first}\r\n");
    let mut written: Vec<String> = Vec::new();
    for (_, line) in below {
        match line.as_bytes().first() {
            Some(b'=' | b'"' | b'*' | b'+') => {}
            Some(b'!') => written.push(line[1..].trim().to_ascii_lowercase()),
            _ => {
                let (name, _) = line.split_once(':').ok_or_else(|| format!("not a field: {line}"))?;
                written.push(name.to_ascii_lowercase());
                head.extend([variables.replace(line).as_str(), "\r\n"]);
            }
        }
    }
    let is_written = |name: &str| written.iter().any(|written| *written == name.to_ascii_lowercase());
    for (name, value) in usual.iter().filter(|(name, _)| !is_written(name)) {
        head.extend([name, ": ", value, "\r\n"]);
    }
    let body = expected_bytes(below, variables)?;
    let is_framed = is_written("content-length") || is_written("transfer-encoding");
    match mode {
        Mode::Chunked if !is_framed => head.push_str("Transfer-Encoding: chunked\r\n"),
        Mode::Length if !is_framed => {
            let length = body.as_ref().map_or(0, Vec::len);
            let is_response = first.starts_with("HTTP/");
            // Requests without a body have no length, and neither have some responses.
            let has_none = ["1", "204", "304"].iter().any(|status| first.contains(&format!(" {status}")));
            if body.is_some() || (is_response && !has_none) {
                head.extend(["Content-Length: ", &length.to_string(), "\r\n"]);
            }
        }
        _ => {}
    }
    head.push_str("\r\n");
    let mut message = head.into_bytes();
    match mode {
        Mode::Chunked => {
            message.extend(chunks(below, variables)?);
            message.extend(last_chunk(below, variables));
        }
        _ => message.extend(body.unwrap_or_default()),
    }
    Ok(message)
}

/// Returns the default Date field of a response.
pub(super) fn usual_of_response(variables: &Variables, is_final: bool) -> Vec<(&'static str, String)> {
    if is_final { vec![("Date", date(variables.now))] } else { Vec::new() }
}

/// Builds one chunk from each line of a body.
pub(super) fn chunks(below: &[Line], variables: &Variables) -> Result<Vec<u8>, String> {
    let mut framed = Vec::new();
    for (_, line) in below {
        let Some(data) = bytes(line, variables) else { continue };
        let data = data?;
        if !data.is_empty() {
            framed.extend(format!("{:x}\r\n", data.len()).into_bytes());
            framed.extend(data);
            framed.extend(b"\r\n");
        }
    }
    Ok(framed)
}

/// Builds the last chunk, with the trailers below.
pub(super) fn last_chunk(below: &[Line], variables: &Variables) -> Vec<u8> {
    let mut framed = b"0\r\n".to_vec();
    for (_, line) in below {
        if let Some(trailer) = line.strip_prefix('+') {
            framed.extend(format!("{}\r\n", variables.replace(trailer.trim())).into_bytes());
        }
    }
    framed.extend(b"\r\n");
    framed
}

/// Expected message, from the words after `gets`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Expected {
    /// Status, or method and target.
    pub(super) first: String,
    /// Expected part of the message.
    pub(super) extent: Extent,
    /// Method of the answered request, if it is otherwise unknown.
    pub(super) method: Option<String>,
    /// Connection of an expected request.
    pub(super) connection: ConnectionChoice,
}

/// Expected part of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// Complete message.
    Whole,
    /// Head only; other steps read the body.
    Head,
    /// Incomplete message: the connection ends before the body does.
    Cut,
}

/// Connection of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionChoice {
    /// Any connection.
    Any,
    /// A connection without an earlier request.
    New,
    /// The connection of the last request to this actor.
    Same,
}

impl Expected {
    /// Parses the words after `gets`.
    pub(super) fn of(words: &[&str]) -> Result<Self, String> {
        let mut expected = Self {
            first: String::new(),
            extent: Extent::Whole,
            method: None,
            connection: ConnectionChoice::Any,
        };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match *word {
                "head" => expected.extent = Extent::Head,
                "cut" => expected.extent = Extent::Cut,
                "new" => expected.connection = ConnectionChoice::New,
                "same" => expected.connection = ConnectionChoice::Same,
                "to" => expected.method = Some((*words.next().ok_or("`to` what?")?).to_owned()),
                word if expected.first.is_empty() => expected.first.push_str(word),
                word => expected.first.extend([" ", word]),
            }
        }
        if expected.first.is_empty() { Err("nothing is expected".into()) } else { Ok(expected) }
    }
}

/// Returns true if a message without its end is incomplete, rather than ended by the connection.
pub(super) fn is_short(framing: Framing) -> bool {
    framing != Framing::ToClose
}
