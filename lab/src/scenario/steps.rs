//! Messages as steps write them: heads that are sent, with what every message has unless a line says otherwise.

use super::check::{Line, wanted_bytes};
use super::message::Framing;
use super::value::{Variables, bytes, date};

/// What is done with the body of a message that is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Its length is told.
    Length,
    /// Each line of it is a chunk.
    Chunked,
    /// Its length is not told: the end of the connection is its end.
    Close,
    /// It is sent by other steps, and the lines tell its length if anything does.
    Head,
}

impl Mode {
    /// The mode that a word means.
    pub(super) fn of(word: &str) -> Option<Self> {
        match word {
            "chunked" => Some(Self::Chunked),
            "close" => Some(Self::Close),
            "head" => Some(Self::Head),
            _ => None,
        }
    }
}

/// The bytes of a message with that first line: the fields below it, those of `usual` that are not there and not refused by `!Name`,
/// and the body.
pub(super) fn message(
    first: &str,
    usual: &[(&str, String)],
    below: &[Line],
    mode: Mode,
    variables: &Variables,
) -> Result<Vec<u8>, String> {
    let mut head = format!("{first}\r\n");
    let mut told: Vec<String> = Vec::new();
    for (_, line) in below {
        match line.as_bytes().first() {
            Some(b'=' | b'"' | b'*' | b'+') => {}
            Some(b'!') => told.push(line[1..].trim().to_ascii_lowercase()),
            _ => {
                let (name, _) =
                    line.split_once(':').ok_or_else(|| format!("a line that is no field: {line}"))?;
                told.push(name.to_ascii_lowercase());
                head.extend([variables.replace(line).as_str(), "\r\n"]);
            }
        }
    }
    let is_told = |name: &str| told.iter().any(|told| *told == name.to_ascii_lowercase());
    for (name, value) in usual.iter().filter(|(name, _)| !is_told(name)) {
        head.extend([name, ": ", value, "\r\n"]);
    }
    let body = wanted_bytes(below, variables)?;
    let is_framed = is_told("content-length") || is_told("transfer-encoding");
    match mode {
        Mode::Chunked if !is_framed => head.push_str("Transfer-Encoding: chunked\r\n"),
        Mode::Length if !is_framed => {
            let length = body.as_ref().map_or(0, Vec::len);
            let is_response = first.starts_with("HTTP/");
            // A request without a body tells no length, and some responses have none.
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

/// The date that a response has, unless a line says otherwise.
pub(super) fn usual_of_response(variables: &Variables, is_final: bool) -> Vec<(&'static str, String)> {
    if is_final { vec![("Date", date(variables.now))] } else { Vec::new() }
}

/// Each line of a body as a chunk.
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

/// The last chunk, with the trailers below.
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

/// What an awaited message is, told by the words behind `gets`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Awaited {
    /// The status, or method and target.
    pub(super) first: String,
    /// How much of it.
    pub(super) extent: Extent,
    /// The method of the request that it answers, where that is not known.
    pub(super) method: Option<String>,
    /// On which connection a request is to come.
    pub(super) place: Place,
}

/// How much of a message is awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// All of it.
    Whole,
    /// Its head; the body is for other steps.
    Head,
    /// It breaks off: the connection ends before the body does.
    Cut,
}

/// On which connection a request comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Any.
    Any,
    /// One that carried none before.
    New,
    /// The one that the last request to this actor came on.
    Same,
}

impl Awaited {
    /// From the words behind `gets`.
    pub(super) fn of(words: &[&str]) -> Result<Self, String> {
        let mut awaited =
            Self { first: String::new(), extent: Extent::Whole, method: None, place: Place::Any };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match *word {
                "head" => awaited.extent = Extent::Head,
                "cut" => awaited.extent = Extent::Cut,
                "new" => awaited.place = Place::New,
                "same" => awaited.place = Place::Same,
                "to" => awaited.method = Some((*words.next().ok_or("`to` what?")?).to_owned()),
                word if awaited.first.is_empty() => awaited.first.push_str(word),
                word => awaited.first.extend([" ", word]),
            }
        }
        if awaited.first.is_empty() { Err("nothing is awaited".into()) } else { Ok(awaited) }
    }
}

/// Whether a whole body may still come, or what came is all there will be.
pub(super) fn is_short(framing: Framing) -> bool {
    framing != Framing::ToClose
}
