//! Rows of the table `dns`.

use std::fmt::Write as _;

use strait_packet::dns::{Data, Dns, kind};

use super::message::Message;
use super::rows::{Cell, MessageRow, TEXT_BYTES_MAX};

/// Flag bits of the header: AA, TC, RD, RA, AD, CD.
const FLAGS: u16 = 0x07b0;
/// Maximum number of answers in a row.
const ANSWERS_MAX: usize = 64;

/// Parses a message. An answer that is cut, or does not fit into the text, ends the answers.
pub(super) fn row(message: &Message) -> Option<MessageRow> {
    let dns = Dns::parse(&message.bytes).ok()?;
    let question = dns.question().transpose().ok()?;
    let (answers, ttl) = answers(&dns);
    let is_response = dns.is_response();
    let [_, answer_count, ..] = dns.counts();
    let cells = vec![
        Cell::text(if is_response { "response" } else { "query" }),
        Cell::number(dns.id()),
        Cell::number(dns.opcode()),
        Cell::optional(is_response.then(|| dns.response_code())),
        Cell::number(dns.flags() & FLAGS),
        Cell::Text(question.map(|question| without_dot(question.name.to_string()))),
        Cell::Text(question.map(|question| kind_name(question.kind))),
        Cell::optional(question.map(|question| question.class)),
        Cell::number(answer_count),
        Cell::Text((!answers.is_empty()).then_some(answers)),
        Cell::optional(ttl),
    ];
    MessageRow::new(message, cells)
}

/// Returns the data of the answers, and the smallest time to live.
fn answers(dns: &Dns<'_>) -> (String, Option<u32>) {
    let (mut text, mut ttl) = (String::new(), None);
    let Ok(answers) = dns.answers() else { return (text, ttl) };
    for answer in answers.map_while(Result::ok).take(ANSWERS_MAX) {
        let before = text.len();
        if !text.is_empty() {
            text.push(' ');
        }
        // Writing to a String cannot fail.
        let _ = match answer.data {
            Data::A(address) => write!(text, "{address}"),
            Data::Aaaa(address) => write!(text, "{address}"),
            Data::Name(name) => write!(text, "{}", without_dot(name.to_string())),
            Data::Other(_) => write!(text, "{}", kind_name(answer.kind)),
        };
        if text.len() > TEXT_BYTES_MAX {
            text.truncate(before);
            break;
        }
        ttl = Some(ttl.map_or(answer.ttl, |least: u32| least.min(answer.ttl)));
    }
    (text, ttl)
}

fn kind_name(number: u16) -> String {
    kind::name(number).map_or_else(|| format!("TYPE{number}"), str::to_owned)
}

/// Removes the dot at the end of a name, except that of the root.
fn without_dot(mut name: String) -> String {
    if name.len() > 1 {
        name.pop();
    }
    name
}
