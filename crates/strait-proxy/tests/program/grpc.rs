//! gRPC through the proxy: clients and servers of the Python package grpcio.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use lab::{Launch, Process, fetched_or_skip, wait_until};

use crate::authority::Authority;
use crate::rig::{LIMIT, Proxy, Setup};

const PROGRAMS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/program/grpc");
const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/sites/strait.toml");
/// Time limit of a case on a busy machine.
const CASE_LIMIT: Duration = Duration::from_mins(5);
/// Memory that the proxy may have used after long streams.
const MEMORY_MAX: u64 = 128 << 20;

pub(crate) fn python_or_skip() -> Option<PathBuf> {
    fetched_or_skip("grpc/bin/python")
}

/// Server of gRPC.
pub(crate) struct Server {
    pub(crate) port: u16,
    _process: Process,
}

impl Server {
    pub(crate) fn start(python: &Path, arguments: &[&Path]) -> Self {
        let launch = Launch::new(python).env("PYTHONDONTWRITEBYTECODE", "1");
        let launch = launch.arg(format!("{PROGRAMS}/server.py")).args(arguments);
        let process = launch.spawn().unwrap();
        process.wait_for_stdout("\n", LIMIT).unwrap();
        let port = process.stdout().trim().parse().unwrap();
        Self { port, _process: process }
    }
}

/// Runs a case of the client; returns its output.
pub(crate) fn run(python: &Path, target: SocketAddr, arguments: &[&str]) -> String {
    let launch = Launch::new(python).env("PYTHONDONTWRITEBYTECODE", "1");
    let launch = launch.arg(format!("{PROGRAMS}/client.py")).arg(target.to_string()).args(arguments);
    launch.run(CASE_LIMIT).unwrap().success().text().trim().to_owned()
}

/// Starts a proxy for a server, which is a URL, with further lines of the pool and the file.
fn proxy_for(server: &str, pool: &str, more: &str) -> Proxy {
    let config = format!(
        "http2.enabled = true\n{more}\n[pool.calls]\nservers = [\"{server}\"]\n{pool}\n[[site]]\nroute = [{{ pool = \"calls\" }}]\n"
    );
    Setup::of_config(&config).start()
}

#[test]
fn calls_of_all_forms_pass() {
    let Some(python) = python_or_skip() else { return };
    let server = Server::start(&python, &[]);
    let proxy = proxy_for(&format!("127.0.0.1:{}", server.port), "http2 = \"on\"", "");
    for (case, expected) in [
        (&["unary"][..], "olleh 1 5 b'\\x00\\xff'"),
        (&["client_stream", "4"], "4194304"),
        (&["server_stream", "4"], "4194304"),
        (&["both", "100"], "100 OK"),
        (&["both_at_once", "4"], "4194304"),
        (&["status"], "FAILED_PRECONDITION not \u{e4} this way"),
        (&["deadline"], "DEADLINE_EXCEEDED\ncancelled"),
        (&["cancel"], "begun\ncancelled"),
        (&["many", "300"], "300"),
    ] {
        assert_eq!(run(&python, proxy.address, case), expected, "{case:?}");
    }
}

/// Passes streams of `STRAIT_GRPC_MIB` (64) MiB in each form.
#[test]
fn long_streams_pass_in_little_memory() {
    let Some(python) = python_or_skip() else { return };
    let mib: u64 = std::env::var("STRAIT_GRPC_MIB").map_or(64, |mib| mib.parse().unwrap());
    let server = Server::start(&python, &[]);
    let proxy = proxy_for(&format!("127.0.0.1:{}", server.port), "http2 = \"on\"", "");
    for case in ["client_stream", "server_stream", "both_at_once"] {
        let total = run(&python, proxy.address, &[case, &mib.to_string()]);
        assert_eq!(total, (mib << 20).to_string(), "{case}");
    }
    assert!(proxy.memory_peak() < MEMORY_MAX, "{}", proxy.memory_peak());
}

#[test]
fn servers_with_tls_choose_http2() {
    let Some(python) = python_or_skip() else { return };
    let authority = Authority::new();
    authority.sign("127.0.0.1");
    let files = [authority.file("127.0.0.1.key"), authority.file("127.0.0.1.pem")];
    let server = Server::start(&python, &[&files[0], &files[1]]);
    let root = format!("tls.origin_ca = \"{}\"", authority.file("ca.pem").display());
    for mode in ["auto", "on"] {
        let url = format!("https://127.0.0.1:{}", server.port);
        let proxy = proxy_for(&url, &format!("http2 = \"{mode}\""), &root);
        assert_eq!(run(&python, proxy.address, &["unary"]), "olleh 1 5 b'\\x00\\xff'");
        assert_eq!(run(&python, proxy.address, &["both_at_once", "4"]), "4194304");
        assert_eq!(run(&python, proxy.address, &["cancel"]), "begun\ncancelled");
    }
}

#[test]
fn example_passes_calls_and_limits_their_rate() {
    let Some(python) = python_or_skip() else { return };
    let authority = Authority::new();
    for name in ["example.org", "www.example.org"] {
        authority.sign(name);
    }
    let server = Server::start(&python, &[]);
    let hash = bcrypt::hash_with_salt("b", 4, [7; 16]).unwrap();
    fs::write(authority.file("staff"), format!("ann:{hash}\n")).unwrap();
    let mut text = fs::read_to_string(EXAMPLE).unwrap();
    for (there, here) in [
        ("0.0.0.0:80", "127.0.0.1:0".to_owned()),
        ("0.0.0.0:443", "127.0.0.1:0".to_owned()),
        ("127.0.0.1:9128", "127.0.0.1:0".to_owned()),
        ("/etc/strait", authority.directory.path().display().to_string()),
        ("/srv/shop", authority.directory.path().display().to_string()),
        ("10.0.1.3:50051", format!("127.0.0.1:{}", server.port)),
    ] {
        assert!(text.contains(there), "{there}");
        text = text.replace(there, &here);
    }
    let proxy = Setup::of_config(&text).start();
    // The address with TLS follows in the output.
    let secure = || proxy.addresses().into_iter().find(|address| *address != proxy.address);
    assert!(wait_until(LIMIT, || secure().is_some()));
    let address = secure().unwrap();
    TcpStream::connect(address).unwrap();
    let root = authority.file("ca.pem").display().to_string();
    let more = ["--root", &root, "--host", "www.example.org", "--service", "shop.Orders"];
    let call = |case: &[&str]| run(&python, address, &[case, &more].concat());
    assert_eq!(call(&["both", "3"]), "3 OK");
    let results = call(&["rate", "200"]);
    let (answered, codes) = results.split_once(' ').unwrap();
    // HTTP 429 is UNAVAILABLE in gRPC.
    assert!(answered.parse::<u32>().unwrap() > 30 && codes == "OK UNAVAILABLE", "{results}");
}
