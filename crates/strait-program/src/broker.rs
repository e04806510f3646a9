//! Broker of messages: its URL, and the protocol between the program that makes flows and the one
//! that publishes them.
//!
//! `strait capture` writes batches to the standard input of `strait-upload publish`, and reads an
//! answer for each one from its standard output. A batch is a line with the number of its first
//! flow and with its length in bytes, and then the flows in the format of the broker:
//!
//! | format | flows of a batch | message of the broker |
//! |---|---|---|
//! | JSON | a line for each flow | a flow |
//! | Protobuf | for each flow its length as a varint, and a message | a flow |
//! | Arrow | a stream of Arrow IPC with one record batch | such a stream, with some rows |

use std::fmt;
use std::str::FromStr;

use crate::authority;

/// Maximum number of servers in a URL.
const SERVERS_MAX: usize = 16;
/// Maximum lengths of a subject and of a topic.
const SUBJECT_LEN_MAX: usize = 255;
const TOPIC_LEN_MAX: usize = 249;
/// Maximum length of a batch after its first line.
pub const BATCH_BYTES_MAX: usize = 1 << 20;
/// Maximum length of the first line of a batch.
pub const HEAD_LEN_MAX: usize = 64;
/// Maximum length of an answer: more than the numbers of all flows of a batch.
pub const ANSWER_LEN_MAX: usize = 64 << 10;
/// Maximum number of characters of the cause in an answer. It can have text of the broker.
const CAUSE_LEN_MAX: usize = 500;

/// Format of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// An object of JSON for each flow.
    #[default]
    Json,
    /// A stream of Arrow IPC for several flows.
    Arrow,
    /// A message of Protocol Buffers for each flow.
    Protobuf,
}

const FORMATS: [Format; 3] = [Format::Json, Format::Arrow, Format::Protobuf];

impl Format {
    /// Parses the part of a URL after `?`.
    fn parse(query: &str) -> Result<Self, String> {
        let name = query.strip_prefix("format=");
        // The error must not have the query: it may be a secret.
        FORMATS.into_iter().find(|format| name == Some(format.name())).ok_or_else(|| {
            "give a format after ?, as in ?format=arrow, ?format=protobuf or ?format=json".into()
        })
    }

    /// Returns the name in a URL.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Arrow => "arrow",
            Self::Protobuf => "protobuf",
        }
    }
}

/// Kind of a broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// NATS, with JetStream.
    Nats,
    /// Apache Kafka, and servers with its protocol.
    Kafka,
}

/// Schemes of URLs, with true for those that require TLS.
const SCHEMES: [(&str, Kind, bool); 4] = [
    ("nats", Kind::Nats, false),
    ("nats+tls", Kind::Nats, true),
    ("kafka", Kind::Kafka, false),
    ("kafka+tls", Kind::Kafka, true),
];

impl Kind {
    const fn port(self) -> u16 {
        match self {
            Self::Nats => 4222,
            Self::Kafka => 9092,
        }
    }

    const fn example(self) -> &'static str {
        match self {
            Self::Nats => "give a server and a subject, as in nats://192.0.2.1:4222/flows",
            Self::Kafka => "give servers and a topic, as in kafka://192.0.2.1:9092,192.0.2.2:9092/flows",
        }
    }

    const fn credentials(self) -> &'static str {
        match self {
            Self::Nats => "NATS_CREDS, NATS_TOKEN, or NATS_USER and NATS_PASSWORD",
            Self::Kafka => "KAFKA_USER and KAFKA_PASSWORD",
        }
    }

    /// Checks the name of a subject or a topic.
    fn check(self, name: &str) -> Result<(), String> {
        let is_letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        let is_token = |token: &str| !token.is_empty() && token.chars().all(is_letter);
        match self {
            Self::Nats if name.len() > SUBJECT_LEN_MAX || !name.split('.').all(is_token) => Err(format!(
                "{name}: a subject has letters, digits, '-' and '_' between each '.', as in flows.fr1"
            )),
            Self::Kafka
                if name.is_empty()
                    || name.len() > TOPIC_LEN_MAX
                    || matches!(name, "." | "..")
                    || !name.chars().all(|c| is_letter(c) || c == '.') =>
            {
                Err(format!("{name}: a topic has letters, digits, '.', '-' and '_', as in flows"))
            }
            _ => Ok(()),
        }
    }
}

/// Subject or topic of a broker: `nats://HOST:PORT/SUBJECT`, `kafka://HOST:PORT,HOST:PORT/TOPIC`;
/// or `nats+tls://`, `kafka+tls://`. The format of messages follows as `?format=NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broker {
    /// Kind, which has the protocol.
    pub kind: Kind,
    /// HOST:PORT of each server in the URL. Of NATS there is one.
    pub addresses: Vec<String>,
    /// Subject or topic of the messages.
    pub name: String,
    /// True if connections must use TLS.
    pub requires_tls: bool,
    /// Format of the messages.
    pub format: Format,
}

impl Broker {
    /// Returns true if the URL is one of a broker.
    pub fn has_scheme(url: &str) -> bool {
        scheme(url).is_some()
    }
}

/// Returns kind and TLS of a URL, and the rest after its scheme.
fn scheme(url: &str) -> Option<(Kind, bool, &str)> {
    let (name, rest) = url.split_once(':')?;
    let (_, kind, requires_tls) = SCHEMES.into_iter().find(|(scheme, ..)| *scheme == name)?;
    Some((kind, requires_tls, rest))
}

impl FromStr for Broker {
    type Err = String;

    fn from_str(url: &str) -> Result<Self, String> {
        let (kind, requires_tls, rest) = scheme(url).ok_or(Kind::Nats.example())?;
        let rest = rest.strip_prefix("//").ok_or(kind.example())?;
        let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
        let (servers, name) = rest.split_once('/').ok_or(kind.example())?;
        if servers.contains('@') {
            return Err(format!(
                "give credentials by {}: a URL is in the list of processes",
                kind.credentials()
            ));
        }
        let address = |server| authority::parse(server, kind.port(), kind.example());
        let addresses = match kind {
            Kind::Nats => vec![address(servers)?],
            Kind::Kafka => servers.split(',').map(address).collect::<Result<Vec<_>, _>>()?,
        };
        if addresses.len() > SERVERS_MAX {
            return Err(format!("give {SERVERS_MAX} servers at most: they name the others"));
        }
        kind.check(name)?;
        let format = query.map_or(Ok(Format::default()), Format::parse)?;
        Ok(Self { kind, addresses, name: name.to_owned(), requires_tls, format })
    }
}

impl fmt::Display for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut schemes = SCHEMES.into_iter();
        let scheme = schemes.find(|&(_, kind, tls)| (kind, tls) == (self.kind, self.requires_tls));
        let scheme = scheme.map_or("", |(scheme, ..)| scheme);
        write!(f, "{scheme}://{}/{}", self.addresses.join(","), self.name)?;
        match self.format {
            Format::Json => Ok(()),
            format => write!(f, "?format={}", format.name()),
        }
    }
}

/// First line of a batch: `FIRST BYTES`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Number of the first flow.
    pub first: u64,
    /// Length of the flows.
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

/// Answer to a batch, a line: the positions of the flows that are lost, separated by commas, and
/// the cause; neither if the broker has taken all of them. Before that come the numbers of stored
/// messages and of their bytes, as in `=2,1500`, and of repeated flows, as in `+3`, unless they are
/// zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Positions of the lost flows in the batch.
    pub lost: Vec<usize>,
    /// Cause of the loss.
    pub cause: String,
    /// Flows that were sent again although the broker may have stored them: it may have them twice.
    pub repeated: u64,
    /// Messages that the broker has acknowledged.
    pub messages: u64,
    /// Bytes of these messages, without keys and headers.
    pub bytes: u64,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.messages > 0 {
            write!(f, "={},{} ", self.messages, self.bytes)?;
        }
        if self.repeated > 0 {
            write!(f, "+{} ", self.repeated)?;
        }
        if !self.lost.is_empty() {
            let lost: Vec<String> = self.lost.iter().map(usize::to_string).collect();
            let cause: String = self.cause.chars().take(CAUSE_LEN_MAX).collect();
            let cause: Vec<&str> = cause.split_whitespace().collect();
            write!(f, "{} {}", lost.join(","), cause.join(" "))?;
        }
        f.write_str("\n")
    }
}

impl FromStr for Answer {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let wrong = || "the answer to a batch has no positions".to_owned();
        let (stored, line) = marked(line.trim_end(), '=');
        let (messages, bytes) =
            stored.map_or(Some(("0", "0")), |stored| stored.split_once(',')).ok_or_else(wrong)?;
        let number = |text: &str| text.parse::<u64>().map_err(|_| wrong());
        let (messages, bytes) = (number(messages)?, number(bytes)?);
        let (repeated, line) = marked(line, '+');
        let repeated = number(repeated.unwrap_or("0"))?;
        if line.is_empty() {
            return Ok(Self { repeated, messages, bytes, ..Self::default() });
        }
        let (lost, cause) = line.split_once(' ').unwrap_or((line, ""));
        let lost: Result<Vec<usize>, _> = lost.split(',').map(str::parse).collect();
        let lost = lost.map_err(|_| wrong())?;
        Ok(Self { lost, cause: cause.to_owned(), repeated, messages, bytes })
    }
}

/// Splits the first word off a line, without its mark, if it has that mark.
fn marked(line: &str, mark: char) -> (Option<&str>, &str) {
    line.strip_prefix(mark).map_or((None, line), |rest| {
        let (word, rest) = rest.split_once(' ').unwrap_or((rest, ""));
        (Some(word), rest)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_parsed_strictly() {
        for (url, addresses, name, requires_tls) in [
            ("nats://192.0.2.1/flows", &["192.0.2.1:4222"][..], "flows", false),
            (
                "nats://broker.example:4333/flows.fr-1.raw_",
                &["broker.example:4333"],
                "flows.fr-1.raw_",
                false,
            ),
            ("nats+tls://[2001:db8::1]/f", &["[2001:db8::1]:4222"], "f", true),
            ("kafka://192.0.2.1/flows", &["192.0.2.1:9092"], "flows", false),
            ("kafka+tls://a:9093,[::1],c:1/.f-_", &["a:9093", "[::1]:9092", "c:1"], ".f-_", true),
            ("kafka://a/...", &["a:9092"], "...", false),
        ] {
            let broker: Broker = url.parse().unwrap();
            assert_eq!(broker.addresses, addresses, "{url}");
            assert_eq!(broker.name, name, "{url}");
            assert_eq!((broker.requires_tls, broker.format), (requires_tls, Format::Json));
            for format in FORMATS {
                let with_format = Broker { format, ..broker.clone() };
                let given = format!("{url}?format={}", format.name());
                assert_eq!(
                    (given.parse(), with_format.to_string().parse()),
                    (Ok(with_format.clone()), Ok(with_format))
                );
            }
        }
        let many = format!("kafka://{}h/flows", "h,".repeat(SERVERS_MAX));
        for (url, words) in [
            ("nats:x", "a server and a subject"),
            ("nats://host", "a server and a subject"),
            ("nats:///flows", "a server and a subject"),
            ("nats://ho st/flows", "a server and a subject"),
            ("nats://a,b/flows", "a server and a subject"),
            ("nats://host:0/flows", "give a port"),
            ("nats://user:SECRET@host/flows", "give credentials by NATS_CREDS"),
            ("nats://host/", "a subject has"),
            ("nats://host/a..b", "a subject has"),
            ("nats://host/a.*", "a subject has"),
            ("nats://host/a.>", "a subject has"),
            ("nats://host/$JS.API", "a subject has"),
            ("nats://host/a b", "a subject has"),
            ("nats://host/a?x=1", "give a format after ?, as in ?format=arrow"),
            ("nats://host/a?token=SECRET", "give a format"),
            ("nats://host/a?", "give a format"),
            ("nats://host/a?format=", "give a format"),
            ("nats://host/a?format=Arrow", "give a format"),
            ("nats://host/?format=arrow", "a subject has"),
            ("nats://host?format=arrow", "a server and a subject"),
            ("kafka://host", "servers and a topic"),
            ("kafka:///flows", "servers and a topic"),
            ("kafka://a,/flows", "servers and a topic"),
            ("kafka://a,b:0/flows", "give a port"),
            ("kafka://user:SECRET@host/flows", "give credentials by KAFKA_USER"),
            ("kafka://host/", "a topic has"),
            ("kafka://host/..", "a topic has"),
            ("kafka://host/a/b", "a topic has"),
            ("kafka://host/a?format=avro", "give a format"),
            ("kafka://host/a?format=arrow&format=json", "give a format"),
            (&many, "16 servers at most"),
        ] {
            let error = url.parse::<Broker>().unwrap_err();
            assert!(error.contains(words) && !error.contains("SECRET"), "{url}: {error}");
        }
        assert!(Broker::has_scheme("kafka+tls://x") && !Broker::has_scheme("kafka"));
    }

    #[test]
    fn heads_and_answers_are_read_back() {
        let head = Head { first: u64::MAX, bytes: BATCH_BYTES_MAX };
        assert!(head.to_string().len() < HEAD_LEN_MAX);
        assert_eq!(head.to_string().parse(), Ok(head));
        for wrong in ["", "1", "1 x", "-1 2", "1 2 3", "1 1048577"] {
            assert!(wrong.parse::<Head>().is_err(), "{wrong}");
        }
        for (lost, cause, repeated, messages) in [
            (vec![], "", 0, 0),
            (vec![0, 7], "it is down", 0, 0),
            (vec![], "", 7, 0),
            (vec![1], "x", 2, 0),
            (vec![], "", 0, 5),
            (vec![1], "x", 2, 5),
        ] {
            let answer = Answer { lost, cause: cause.into(), repeated, messages, bytes: 100 * messages };
            assert_eq!(answer.to_string().parse(), Ok(answer));
        }
        let lines = Answer { lost: vec![3], cause: "two\nlines".into(), ..Answer::default() };
        assert_eq!(lines.to_string(), "3 two lines\n");
        let long = Answer { lost: vec![3], cause: "é".repeat(ANSWER_LEN_MAX), ..Answer::default() };
        assert_eq!(long.to_string(), format!("3 {}\n", "é".repeat(CAUSE_LEN_MAX)));
        for wrong in ["x y", "+", "+x 1", "+1 x", "=", "=1", "=1 2", "=x,1", "=1,-1", "+1 =1,1"] {
            assert!(wrong.parse::<Answer>().is_err(), "{wrong}");
        }
    }
}
