//! Stored responses of a running proxy, by its admin address.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

use super::{Command, one_more};
use strait_program::Error;

/// Timeout of the connection and of the first response.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of the second response: the proxy may have to read the whole store.
const READ_TIMEOUT: Duration = Duration::from_hours(1);
/// Maximum size of a response.
const ANSWER_BYTES_MAX: u64 = 1 << 30;

/// Admin address of a proxy.
pub(super) struct Remote(pub(super) SocketAddr);

impl Remote {
    /// Runs a command on the proxy.
    pub(super) fn run(&self, command: &Command) -> Result<Value, Error> {
        // A missing or different server is reported before the long timeout begins.
        if self.exchange("GET", "/healthz", CONNECT_TIMEOUT)?.trim_end() != "ok" {
            return Err(self.other_server());
        }
        let (method, target) = request(command);
        let answer = self.exchange(method, &target, READ_TIMEOUT)?;
        let answer: Value = serde_json::from_str(&answer).map_err(|_| self.other_server())?;
        match command {
            Command::Stats => match answer.get("store") {
                Some(store @ Value::Object(_)) => Ok(store.clone()),
                None => Err(self.other_server()),
                Some(_) => Err(Error::failed("the proxy has no store: cache.dir is not set".to_owned())),
            },
            _ => Ok(answer),
        }
    }

    /// Sends one request. Each piece of the response must arrive within `timeout`.
    fn exchange(&self, method: &str, target: &str, timeout: Duration) -> Result<String, Error> {
        let mut answer = Vec::new();
        let mut ask = || {
            let mut stream = TcpStream::connect_timeout(&self.0, CONNECT_TIMEOUT)?;
            stream.set_read_timeout(Some(timeout))?;
            write!(stream, "{method} {target} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.0)?;
            stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)
        };
        ask().map_err(|error| self.unreachable(&error, timeout))?;
        let answer = String::from_utf8_lossy(&answer);
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        match head.split(' ').nth(1) {
            Some("200") => Ok(body.to_owned()),
            None => {
                Err(self.failed("no response; check that admin.allow of the proxy includes this machine"))
            }
            Some(_) if is_a_line(body.trim_end()) => Err(self.failed(body.trim_end())),
            Some(_) => Err(self.other_server()),
        }
    }

    fn failed(&self, why: &str) -> Error {
        Error::failed(format!("{}: {why}", self.0))
    }

    fn other_server(&self) -> Error {
        Error::failed(format!("{} responds, but is not the admin address of a proxy (admin.listen)", self.0))
    }

    fn unreachable(&self, error: &io::Error, timeout: Duration) -> Error {
        let why = match error.kind() {
            io::ErrorKind::WouldBlock => format!("no response within {} s", timeout.as_secs()),
            io::ErrorKind::TimedOut => format!("no connection within {} s", CONNECT_TIMEOUT.as_secs()),
            _ => error.to_string(),
        };
        Error::failed(format!("ask {}: {why}; is it admin.listen of a running proxy?", self.0))
    }
}

/// Returns the method and the target of a command.
fn request(command: &Command) -> (&'static str, String) {
    match command {
        Command::Stats => ("GET", "/status.json".to_owned()),
        Command::Ls { pattern, most } => {
            ("GET", format!("/objects?pattern={}&most={}", encoded(pattern), one_more(*most)))
        }
        Command::Get { uri } => ("GET", format!("/object?uri={}", encoded(uri))),
        Command::Purge { uri, tag, soft } => {
            let of = match tag {
                Some(tag) => format!("tag={}", encoded(tag)),
                None => format!("uri={}", encoded(uri.as_deref().unwrap_or_default())),
            };
            ("POST", format!("/purge?{of}{}", if *soft { "&soft=1" } else { "" }))
        }
        Command::Drain { server, pool, undo } => {
            let path = if *undo { "/undrain" } else { "/drain" };
            let pool = pool.as_ref().map(|pool| format!("&pool={}", encoded(pool))).unwrap_or_default();
            ("POST", format!("{path}?server={}{pool}", encoded(server)))
        }
        Command::Ban { pattern } => ("POST", format!("/ban?pattern={}", encoded(pattern))),
        Command::Verify => ("POST", "/verify".to_owned()),
    }
}

/// Returns true for a text that can be the proxy's message: one line, and not a page of another
/// server.
fn is_a_line(text: &str) -> bool {
    !text.is_empty() && !text.contains(|c: char| c.is_control() || c == '<')
}

/// Encodes a parameter of a query.
fn encoded(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/:*".contains(&byte);
    let encode =
        |byte: u8| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(encode).collect()
}
