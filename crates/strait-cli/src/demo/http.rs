//! A miss and a hit of `strait proxy` in front of an origin on the loopback.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::child::{Child, strait};
use super::part::{Outcome, PartResult, Topic};
use super::rig::Rig;
use crate::Error;

pub(super) const TOPIC: Topic = Topic {
    key: "http",
    title: "A miss and a hit of the caching proxy",
    next: "{strait} proxy --cache-dir strait-cache",
};

/// Length of the origin's object.
const BODY_BYTES: usize = 4 << 20;
/// Time between the head and the body of the origin's response.
const BODY_DELAY: Duration = Duration::from_millis(50);
const TIMEOUT: Duration = Duration::from_secs(20);

/// Runs the part.
pub(super) fn run(rig: &Rig) -> Result<Outcome, Error> {
    let origin = origin().map_err(|error| failed("serve an object on the loopback", &error))?;
    let cache = rig.file("cache");
    let options = ["proxy", "--json", "--workers", "1", "--listen", "127.0.0.1:0", "--cache-size", "1GiB"];
    let places = ["--origin", &origin, "--cache-dir", &*cache.to_string_lossy()];
    let mut proxy = Child::start(strait(&[&options[..], &places].concat())?)?;
    let address = proxy.wait_for("listening on ")?;
    let mut lines = Vec::new();
    let mut statuses = Vec::new();
    for request in ["first request", "second request"] {
        let (status, bytes) = get(&address).map_err(|error| failed("request an object", &error))?;
        lines.push(format!("{request:<15} {bytes} bytes, Cache-Status: {status}"));
        statuses.push(json!({ "cache_status": status, "bytes": bytes }));
    }
    proxy.signal(Signal::TERM);
    let account = proxy.end()?.json("strait proxy")?;
    let count = |name: &str| account[name].as_u64().unwrap_or_default();
    // The remaining bytes are the response heads, which the program writes itself.
    let bodies: u64 = statuses.iter().filter_map(|status| status["bytes"].as_u64()).sum();
    let in_kernel = count("sendfile") + count("spliced");
    let copied = bodies.saturating_sub(in_kernel) + count("filled_copied");
    lines.push(format!(
        "bodies          to clients: sendfile {}, splice {}; into the cache: splice {}; copied in user space {copied}",
        count("sendfile"),
        count("spliced"),
        count("filled_spliced"),
    ));
    let is_hit = |status: &Value| status["cache_status"].as_str().is_some_and(|text| text.contains("hit"));
    let is_whole = statuses.iter().all(|status| status["bytes"] == BODY_BYTES);
    let is_failed = !is_whole || !statuses.last().is_some_and(is_hit);
    let sentence = match copied {
        _ if !is_whole => "Not all of the object reached the client.".to_owned(),
        _ if is_failed => "The second request was not answered from the cache.".to_owned(),
        0 => "The body went from origin to disk and from disk to the clients inside the kernel; only the response heads were written by the program.".to_owned(),
        bytes => format!("On this machine {bytes} bytes of bodies were copied through the program; the account counts them."),
    };
    let figures = json!({ "requests": statuses, "copied": copied, "account": account });
    Ok(Outcome::Complete(PartResult { lines, sentence, is_failed, figures }))
}

fn failed(what: &str, error: &std::io::Error) -> Error {
    Error::Failed(format!("{what}: {error}"))
}

/// Starts an origin with one cacheable object and returns its URL. It ends with this process.
fn origin() -> std::io::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let url = format!("http://{}", listener.local_addr()?);
    thread::spawn(move || {
        for mut stream in listener.incoming().filter_map(Result::ok) {
            // The head of the demo's own request arrives in one segment.
            if !stream.read(&mut [0; 4096]).is_ok_and(|read| read > 0) {
                continue;
            }
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {BODY_BYTES}\r\nCache-Control: max-age=600\r\nConnection: close\r\n\r\n"
            );
            // The delay keeps body bytes out of the read of the head, which copies them. Most
            // origins have such a delay. A failed write means that the client left, which needs no
            // body.
            let _ = stream.write_all(head.as_bytes()).and_then(|()| {
                thread::sleep(BODY_DELAY);
                stream.write_all(&vec![b'z'; BODY_BYTES])
            });
        }
    });
    Ok(url)
}

/// Requests the object, and returns its Cache-Status and the length of its body.
fn get(address: &str) -> std::io::Result<(String, usize)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(b"GET /object HTTP/1.1\r\nHost: www.example\r\nConnection: close\r\n\r\n")?;
    let mut response = Vec::new();
    stream.read_to_end(&mut response)?;
    let head = response.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap_or(response.len());
    let text = String::from_utf8_lossy(&response[..head]).into_owned();
    let status = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("cache-status").then(|| value.trim().to_owned())
    });
    Ok((status.unwrap_or_else(|| "none".into()), response.len().saturating_sub(head + 4)))
}
