//! What a proxy that runs tells of what it has stored, over its admin address.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

use super::Command;
use crate::Error;

/// How long the proxy may take to say anything: it may have to read all that is stored.
const PATIENCE: Duration = Duration::from_hours(1);
/// Bytes of an answer at most.
const ANSWER_BYTES_MAX: u64 = 1 << 30;

/// A proxy's admin address.
pub(super) struct Remote(pub(super) SocketAddr);

impl Remote {
    /// What it tells.
    pub(super) fn ask(&self, command: &Command) -> Result<Value, Error> {
        let answer = match command {
            Command::Stats => self.exchange("GET", "/status.json")?,
            Command::Ls { pattern, most } => {
                self.exchange("GET", &format!("/objects?pattern={}&most={most}", encoded(pattern)))?
            }
            Command::Get { uri } => self.exchange("GET", &format!("/object?uri={}", encoded(uri)))?,
            Command::Purge { uri } => self.exchange("POST", &format!("/purge?uri={}", encoded(uri)))?,
            Command::Ban { pattern } => {
                self.exchange("POST", &format!("/ban?pattern={}", encoded(pattern)))?
            }
            Command::Verify => self.exchange("POST", "/verify")?,
        };
        match command {
            Command::Stats => match answer.get("store") {
                Some(store @ Value::Object(_)) => Ok(store.clone()),
                _ => Err(Error::Failed("the proxy has no store: cache.dir names none".to_owned())),
            },
            _ => Ok(answer),
        }
    }

    fn exchange(&self, method: &str, target: &str) -> Result<Value, Error> {
        let failed = |error: std::io::Error| {
            Error::Failed(format!("ask {}: {error}; is it admin.listen of a proxy that runs?", self.0))
        };
        let mut answer = Vec::new();
        let mut ask = || {
            let mut stream = TcpStream::connect(self.0)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            write!(stream, "{method} {target} HTTP/1.1\r\nHost: {}\r\n\r\n", self.0)?;
            stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)
        };
        ask().map_err(failed)?;
        let answer = String::from_utf8_lossy(&answer);
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        if head.split(' ').nth(1) != Some("200") {
            return Err(Error::Failed(format!("{}: {}", self.0, body.trim_end())));
        }
        serde_json::from_str(body).map_err(|error| Error::Failed(format!("{}: {error}", self.0)))
    }
}

/// A parameter as it stands in a query.
fn encoded(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/:*".contains(&byte);
    let encode =
        |byte: u8| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(encode).collect()
}
