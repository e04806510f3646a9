//! What a proxy that runs tells of what it has stored, over its admin address.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

use super::{Command, one_more};
use crate::Error;

/// How long it may take to be connected, and for a proxy to say that it is there.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a proxy that is there may take: it may have to read all that is stored.
const PATIENCE_READING: Duration = Duration::from_hours(1);
/// Bytes of an answer at most.
const ANSWER_BYTES_MAX: u64 = 1 << 30;

/// A proxy's admin address.
pub(super) struct Remote(pub(super) SocketAddr);

impl Remote {
    /// What it tells.
    pub(super) fn ask(&self, command: &Command) -> Result<Value, Error> {
        // Whoever is not there is told of before the wait for what takes long.
        if self.exchange("GET", "/healthz", PATIENCE)?.trim_end() != "ok" {
            return Err(self.is_another());
        }
        let (method, target) = request(command);
        let answer = self.exchange(method, &target, PATIENCE_READING)?;
        let answer: Value = serde_json::from_str(&answer).map_err(|_| self.is_another())?;
        match command {
            Command::Stats => match answer.get("store") {
                Some(store @ Value::Object(_)) => Ok(store.clone()),
                None => Err(self.is_another()),
                Some(_) => Err(Error::failed("the proxy has no store: cache.dir names none".to_owned())),
            },
            _ => Ok(answer),
        }
    }

    /// One request; each piece of the answer within `patience`.
    fn exchange(&self, method: &str, target: &str, patience: Duration) -> Result<String, Error> {
        let mut answer = Vec::new();
        let mut ask = || {
            let mut stream = TcpStream::connect_timeout(&self.0, PATIENCE)?;
            stream.set_read_timeout(Some(patience))?;
            write!(stream, "{method} {target} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.0)?;
            stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)
        };
        ask().map_err(|error| self.unreached(&error, patience))?;
        let answer = String::from_utf8_lossy(&answer);
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        match head.split(' ').nth(1) {
            Some("200") => Ok(body.to_owned()),
            None => Err(self.unsaid("no answer; does its admin.allow name this machine?")),
            Some(_) if is_a_line(body.trim_end()) => Err(self.unsaid(body.trim_end())),
            Some(_) => Err(self.is_another()),
        }
    }

    fn unsaid(&self, why: &str) -> Error {
        Error::failed(format!("{}: {why}", self.0))
    }

    fn is_another(&self) -> Error {
        Error::failed(format!("{} answers, but it is no admin address of strait proxy", self.0))
    }

    fn unreached(&self, error: &io::Error, patience: Duration) -> Error {
        let why = match error.kind() {
            io::ErrorKind::WouldBlock => format!("no answer within {} s", patience.as_secs()),
            io::ErrorKind::TimedOut => format!("no connection within {} s", PATIENCE.as_secs()),
            _ => error.to_string(),
        };
        Error::failed(format!("ask {}: {why}; is it admin.listen of a proxy that runs?", self.0))
    }
}

/// The method and the target by which it is asked.
fn request(command: &Command) -> (&'static str, String) {
    match command {
        Command::Stats => ("GET", "/status.json".to_owned()),
        Command::Ls { pattern, most } => {
            ("GET", format!("/objects?pattern={}&most={}", encoded(pattern), one_more(*most)))
        }
        Command::Get { uri } => ("GET", format!("/object?uri={}", encoded(uri))),
        Command::Purge { uri } => ("POST", format!("/purge?uri={}", encoded(uri))),
        Command::Ban { pattern } => ("POST", format!("/ban?pattern={}", encoded(pattern))),
        Command::Verify => ("POST", "/verify".to_owned()),
    }
}

/// Whether a text may be what a proxy says in place of an answer: one line, and no page.
fn is_a_line(text: &str) -> bool {
    !text.is_empty() && !text.contains(|c: char| c.is_control() || c == '<')
}

/// A parameter as it stands in a query.
fn encoded(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/:*".contains(&byte);
    let encode =
        |byte: u8| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(encode).collect()
}
