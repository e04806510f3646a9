//! Broker of messages: its URL, and the protocol between the program that makes flows and the one
//! that publishes them.
//!
//! `strait capture` writes batches to the standard input of `strait-upload publish`, and reads an
//! answer for each one from its standard output. A batch is a line with the number of its first
//! flow and with its length in bytes, and then a line for each flow.

use std::fmt;
use std::str::FromStr;

use crate::authority;

/// Port of NATS.
const NATS_PORT: u16 = 4222;
/// Maximum length of a subject.
const SUBJECT_LEN_MAX: usize = 255;
/// Maximum length of a batch after its first line.
pub const BATCH_BYTES_MAX: usize = 1 << 20;
/// Maximum length of the first line of a batch.
pub const HEAD_LEN_MAX: usize = 64;
/// Maximum length of an answer: more than the numbers of all flows of a batch.
pub const ANSWER_LEN_MAX: usize = 64 << 10;

/// Subject of a NATS server: `nats://HOST:PORT/SUBJECT`, or `nats+tls://`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broker {
    /// HOST:PORT.
    pub address: String,
    /// Subject of the messages.
    pub subject: String,
    /// True if the connection must use TLS.
    pub requires_tls: bool,
}

impl Broker {
    /// Returns true if the URL is one of a broker.
    pub fn has_scheme(url: &str) -> bool {
        url.starts_with("nats:") || url.starts_with("nats+tls:")
    }
}

impl FromStr for Broker {
    type Err = String;

    fn from_str(url: &str) -> Result<Self, String> {
        const REMEDY: &str = "give a server and a subject, as in nats://192.0.2.1:4222/flows";
        let (rest, requires_tls) = match (url.strip_prefix("nats://"), url.strip_prefix("nats+tls://")) {
            (Some(rest), _) => (rest, false),
            (_, Some(rest)) => (rest, true),
            _ => return Err(REMEDY.into()),
        };
        let (authority, subject) = rest.split_once('/').ok_or(REMEDY)?;
        if authority.contains('@') {
            return Err("give credentials by NATS_CREDS, NATS_TOKEN, or NATS_USER and NATS_PASSWORD: a URL \
                        is in the list of processes"
                .into());
        }
        let address = authority::parse(authority, NATS_PORT, REMEDY)?;
        let is_of_subject = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        let is_token = |token: &str| !token.is_empty() && token.chars().all(is_of_subject);
        if subject.len() > SUBJECT_LEN_MAX || !subject.split('.').all(is_token) {
            return Err(format!(
                "{subject}: a subject has letters, digits, '-' and '_' between each '.', as in flows.fr1"
            ));
        }
        Ok(Self { address, subject: subject.to_owned(), requires_tls })
    }
}

impl fmt::Display for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.requires_tls { "nats+tls" } else { "nats" };
        write!(f, "{scheme}://{}/{}", self.address, self.subject)
    }
}

/// First line of a batch: `FIRST BYTES`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Number of the first flow.
    pub first: u64,
    /// Length of the lines of the flows.
    pub bytes: usize,
}

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} {}", self.first, self.bytes)
    }
}

impl FromStr for Head {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let wrong = || "the first line of a batch has a number and a length".to_owned();
        let (first, bytes) = line.trim_end().split_once(' ').ok_or_else(wrong)?;
        let bytes = bytes.parse().ok().filter(|bytes| *bytes <= BATCH_BYTES_MAX).ok_or_else(wrong)?;
        Ok(Self { first: first.parse().map_err(|_| wrong())?, bytes })
    }
}

/// Answer to a batch, a line: an empty one if the broker has taken all flows, else the positions of
/// those that are lost, separated by commas, and the cause.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Positions of the lost flows in the batch.
    pub lost: Vec<usize>,
    /// Cause of the loss.
    pub cause: String,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.lost.is_empty() {
            let lost: Vec<String> = self.lost.iter().map(usize::to_string).collect();
            let cause: Vec<&str> = self.cause.split_whitespace().collect();
            write!(f, "{} {}", lost.join(","), cause.join(" "))?;
        }
        f.write_str("\n")
    }
}

impl FromStr for Answer {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let line = line.trim_end();
        if line.is_empty() {
            return Ok(Self::default());
        }
        let (lost, cause) = line.split_once(' ').unwrap_or((line, ""));
        let lost: Result<Vec<usize>, _> = lost.split(',').map(str::parse).collect();
        let lost = lost.map_err(|_| "the answer to a batch has no positions".to_owned())?;
        Ok(Self { lost, cause: cause.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_parsed_strictly() {
        for (url, address, subject, requires_tls) in [
            ("nats://192.0.2.1/flows", "192.0.2.1:4222", "flows", false),
            ("nats://broker.example:4333/flows.fr-1.raw_", "broker.example:4333", "flows.fr-1.raw_", false),
            ("nats+tls://[2001:db8::1]/f", "[2001:db8::1]:4222", "f", true),
        ] {
            let broker: Broker = url.parse().unwrap();
            assert_eq!((&*broker.address, &*broker.subject), (address, subject), "{url}");
            assert_eq!(broker.requires_tls, requires_tls);
            assert_eq!(broker.to_string().parse(), Ok(broker));
        }
        for (url, words) in [
            ("nats:x", "a server and a subject"),
            ("nats://host", "a server and a subject"),
            ("nats:///flows", "a server and a subject"),
            ("nats://ho st/flows", "a server and a subject"),
            ("nats://host:0/flows", "give a port"),
            ("nats://user:SECRET@host/flows", "give credentials by NATS_CREDS"),
            ("nats://host/", "a subject has"),
            ("nats://host/a..b", "a subject has"),
            ("nats://host/a.*", "a subject has"),
            ("nats://host/a.>", "a subject has"),
            ("nats://host/$JS.API", "a subject has"),
            ("nats://host/a b", "a subject has"),
            ("nats://host/a?x=1", "a subject has"),
        ] {
            let error = url.parse::<Broker>().unwrap_err();
            assert!(error.contains(words) && !error.contains("SECRET"), "{url}: {error}");
        }
    }

    #[test]
    fn heads_and_answers_are_read_back() {
        let head = Head { first: u64::MAX, bytes: BATCH_BYTES_MAX };
        assert!(head.to_string().len() < HEAD_LEN_MAX);
        assert_eq!(head.to_string().parse(), Ok(head));
        for wrong in ["", "1", "1 x", "-1 2", "1 2 3", "1 1048577"] {
            assert!(wrong.parse::<Head>().is_err(), "{wrong}");
        }
        for answer in [Answer::default(), Answer { lost: vec![0, 7], cause: "it is down".into() }] {
            assert_eq!(answer.to_string().parse(), Ok(answer));
        }
        let lines = Answer { lost: vec![3], cause: "two\nlines".into() };
        assert_eq!(lines.to_string(), "3 two lines\n");
        assert!("x y".parse::<Answer>().is_err());
    }
}
