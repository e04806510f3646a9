//! Runs of the commands that print JSON, and of a proxy for its metrics.
//!
//! Everything is on the loopback interface or in a network namespace of its own, and in a temporary
//! directory below the build directory.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::program::{Program, Server, values};
use crate::source::Result;

/// Hosts of the loopback network, so that each printed address shows what it belongs to.
const LISTEN: &str = "127.0.0.1";
const ADMIN: &str = "127.0.0.2";
const ORIGIN: &str = "127.0.0.3";
const METRICS: &str = "127.0.0.4";
/// Length of the body of a response of the origin.
const BODY_BYTES: usize = 100_000;

/// Shell commands that create a veth pair; `vb` receives.
const PAIR: &str =
    "ip link add va type veth peer name vb; ip link set lo up; ip link set va up; ip link set vb up; ";

/// Printed objects and metrics, by section of their page.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) json: Vec<(String, Vec<Value>)>,
    pub(super) metrics: Vec<(&'static str, String)>,
}

impl Seen {
    fn add(&mut self, title: &str, values: Vec<Value>) {
        self.json.push((title.into(), values));
    }
}

pub(super) fn take(program: &Program, root: &Path) -> Result<Seen> {
    let directory = directory(program)?;
    let demo = root.join("crates/strait-cli/data/demo.pcap");
    let demo = demo.to_str().ok_or("the project's path is not UTF-8")?;
    let mut seen = Seen::default();
    seen.add("strait capture --json", program.json(&["capture", "-r", demo, "--json"])?);
    seen.add("strait capture -D --json", program.json(&["capture", "-D", "--json"])?);
    namespaces(program, &mut seen);
    transfers(program, &directory, &mut seen)?;
    proxy(program, &directory, &mut seen)?;
    seen.add("strait doctor --json", program.json(&["doctor", "--json"])?);
    if let Ok(values) = program.json(&["demo", "--json", "--count", "1000"]) {
        seen.add("strait demo --json", values);
    }
    fs::remove_dir_all(directory)?;
    Ok(seen)
}

/// Creates an empty directory for the files of the runs.
fn directory(program: &Program) -> Result<PathBuf> {
    let directory = program.path().with_file_name("reference-files");
    if directory.exists() {
        fs::remove_dir_all(&directory)?;
    }
    fs::create_dir(&directory)?;
    Ok(directory)
}

/// Runs the commands that send packets.
fn namespaces(program: &Program, seen: &mut Seen) {
    let scripts = [
        ("strait generate --json, strait replay --json", "$STRAIT generate -o va -c 10 --json"),
        (
            "strait top --json",
            "$STRAIT generate -o va --rate 1k -d 5 >&2 & $STRAIT top -i vb --json | head -n 2; wait",
        ),
        (
            "strait drops --json",
            "$STRAIT generate -o va --rate 1k -d 4 >&2 & $STRAIT drops --json --interval 2 | head -n 1; wait",
        ),
    ];
    for (title, script) in scripts {
        match program.json_in_namespace(&format!("{PAIR}{script}")) {
            Some(values) => seen.add(title, values),
            None => println!("no network namespace: the section of {title} stays as it is"),
        }
    }
    let title = "strait capture --metrics";
    // A target of each kind. SIGKILL, as nothing takes the last files: nothing listens on the port
    // of the store.
    let script = "dir=$(mktemp -d); export AWS_ACCESS_KEY_ID=a AWS_SECRET_ACCESS_KEY=b AWS_ENDPOINT_URL=http://127.0.0.1:9; \
         $STRAIT capture -i vb --quiet --metrics 127.0.0.1:9000 --duration 60 --to file:$dir/lake --to s3://lake \
         --spool $dir/spool --to ipfix+tcp://127.0.0.1 >/dev/null & \
         curl --silent --retry 30 --retry-delay 1 --retry-connrefused http://127.0.0.1:9000/metrics; kill -9 $!; wait; \
         rm -r $dir";
    match program.text_in_namespace(&format!("{PAIR}{script}")) {
        Some(text) => seen.metrics.push((title, text)),
        None => println!("no network namespace: the section of {title} stays as it is"),
    }
}

fn transfers(program: &Program, directory: &Path, seen: &mut Seen) -> Result<()> {
    let source = write(directory, "source", &vec![7; 3 << 20])?;
    let copy = directory.join("copy").display().to_string();
    let mut receiver = program.serve(&["receive", "-l", "127.0.0.1:0", "-o", &copy, "--json"])?;
    let to = receiver.address(LISTEN)?.to_string();
    let mut accounts = program.json(&["send", &source, &to, "--json"])?;
    accounts.extend(receiver.wait()?);
    seen.add("strait send --json, strait receive --json", accounts);

    let raw = directory.join("raw").display().to_string();
    let mut receiver = program.serve(&["receive", "--raw", "-l", "127.0.0.1:0", "-o", &raw, "--json"])?;
    let to = receiver.address(LISTEN)?.to_string();
    let (listen, metrics) = (format!("{ADMIN}:0"), format!("{METRICS}:0"));
    let options = ["relay", "--listen", &listen, "--to", &to, "--json", "--json-log", "--metrics", &metrics];
    let mut relay = program.serve(&options)?;
    let through = relay.address(ADMIN)?.to_string();
    seen.metrics.push(("strait relay --metrics", get(relay.address(METRICS)?, "/metrics")?));
    program.json(&["send", "--raw", &source, &through, "--json"])?;
    receiver.wait()?;
    let (lines, account): (Vec<Value>, Vec<Value>) =
        relay.stop()?.into_iter().partition(|value| value.get("client").is_some());
    seen.add("strait relay --json", account);
    seen.add("strait relay --json-log", lines);
    Ok(())
}

fn proxy(program: &Program, directory: &Path, seen: &mut Seen) -> Result<()> {
    let origin = TcpListener::bind((ORIGIN, 0))?;
    let origin_url = format!("http://{}", origin.local_addr()?);
    // The thread ends with this process.
    std::thread::spawn(move || origin.incoming().for_each(|client| drop(client.map(answer))));
    let log = directory.join("access.log").display().to_string();
    let config = format!("[log]\naccess = \"{log}\"\nformat = \"json\"\n");
    let config = write(directory, "strait.toml", config.as_bytes())?;
    let cache = directory.join("cache").display().to_string();
    fs::create_dir(&cache)?;
    let (listen, admin) = (format!("{LISTEN}:0"), format!("{ADMIN}:0"));
    let options = ["proxy", "--json", "--config", &config, "--origin", &origin_url, "--cache-dir", &cache];
    let addresses = ["--listen", &listen, "--admin", &admin];
    let mut server = program.serve(&[&options[..], &addresses[..]].concat())?;
    let url = server.address(LISTEN)?;
    let admin = server.address(ADMIN)?;
    for path in ["/a", "/a", "/b", "/none"] {
        get(url, path)?;
    }
    seen.metrics.push(("strait proxy --admin", get(admin, "/metrics")?));
    contents(program, &admin.to_string(), &format!("http://{url}/a"), seen)?;
    finish(server, &log, seen)
}

/// Runs `strait cache` on the running proxy.
fn contents(program: &Program, admin: &str, uri: &str, seen: &mut Seen) -> Result<()> {
    let commands: [(&str, &[&str]); 4] = [
        ("strait cache stats --json", &["stats"]),
        ("strait cache ls --json, strait cache get --json", &["ls"]),
        ("strait cache verify --json", &["verify"]),
        ("strait cache purge --json, strait cache ban --json", &["purge", uri]),
    ];
    for (title, words) in commands {
        let arguments = [&["cache", "--json", "--admin", admin], words].concat();
        seen.add(title, program.json(&arguments)?);
    }
    Ok(())
}

fn finish(server: Server, log: &str, seen: &mut Seen) -> Result<()> {
    seen.add("strait proxy --json", server.stop()?);
    let lines = values(&fs::read_to_string(log)?)?;
    seen.add("Access log of the proxy, format json", lines);
    Ok(())
}

/// Sends a request without keep-alive and returns the body of its response.
fn get(to: SocketAddr, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect(to)?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {to}\r\nUser-Agent: xtask\r\nConnection: close\r\n\r\n")?;
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    Ok(response.split_once("\r\n\r\n").map_or(String::new(), |(_, body)| body.to_owned()))
}

/// Answers one request as an origin: a page for an hour, or 404.
fn answer(mut client: TcpStream) -> Result<()> {
    let mut lines = BufReader::new(client.try_clone()?).lines();
    let request = lines.next().ok_or("no request")??;
    while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
    if request.contains("/none") {
        client.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")?;
        return Ok(());
    }
    let head =
        "HTTP/1.1 200 OK\r\nCache-Control: max-age=3600\r\nContent-Type: text/plain\r\nETag: \"1\"\r\n";
    write!(client, "{head}Content-Length: {BODY_BYTES}\r\nConnection: close\r\n\r\n")?;
    client.write_all(&vec![b'x'; BODY_BYTES])?;
    Ok(())
}

fn write(directory: &Path, name: &str, bytes: &[u8]) -> Result<String> {
    let path = directory.join(name);
    fs::write(&path, bytes)?;
    Ok(path.display().to_string())
}
