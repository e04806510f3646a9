//! The configurations in `examples/proxy`, with addresses and directories of the test.

mod api;
mod office;
mod packages;
mod registry;
mod statics;
mod wordpress;

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;

use lab::wait_until;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::authority::Authority;
use crate::client::{Client, Head, Response};
use crate::origin::{Origin, Request};
use crate::rig::{LIMIT, Proxy, Setup, run};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/proxy");
/// Seconds of a day.
const DAY: i64 = 24 * 3600;
/// Address of a client that the examples do not know.
const OTHER_CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

/// Example with its substitutions, and the directory of its files.
struct Example {
    text: String,
    authority: Authority,
}

impl Example {
    fn read(name: &str) -> Self {
        let authority = Authority::new();
        let own = |folder: &str| authority.file(folder).display().to_string();
        fs::create_dir(own("log")).unwrap();
        let mut text = fs::read_to_string(format!("{EXAMPLES}/{name}.toml")).unwrap();
        for (there, here) in [
            ("/etc/strait", own("")),
            ("/var/cache/strait", own("cache")),
            ("/var/log/strait", own("log")),
            ("0.0.0.0:80", "127.0.0.1:0".to_owned()),
            ("0.0.0.0:443", "127.0.0.1:0".to_owned()),
            ("127.0.0.1:9128", "127.0.0.1:0".to_owned()),
        ] {
            text = text.replace(there, &here);
        }
        Self { text, authority }
    }

    /// Replaces a text of the example.
    #[track_caller]
    fn put(mut self, there: &str, here: &str) -> Self {
        assert!(self.text.contains(there), "{there}");
        self.text = self.text.replace(there, here);
        self
    }

    /// Replaces the URL of a server.
    #[track_caller]
    fn server(self, there: &str, origin: &Origin) -> Self {
        self.put(there, &format!("http://{}", origin.address))
    }

    /// Makes the certificate `NAME.pem` for these hosts.
    fn certificate(self, name: &str, hosts: &[&str]) -> Self {
        self.authority.sign_for(name, hosts);
        self
    }

    /// Checks the configuration, and starts a proxy with it.
    fn start(self) -> Site {
        let file = self.authority.file("strait.toml").display().to_string();
        fs::write(&file, &self.text).unwrap();
        let checked = run(&["--config", &file, "--check-config"]).success().text();
        assert!(checked.starts_with("ok\n"), "{checked}");
        let has_tls = self.text.contains("[tls]");
        Site { proxy: Setup::of_config(&self.text).start(), authority: self.authority, has_tls }
    }
}

/// Running example.
struct Site {
    proxy: Proxy,
    authority: Authority,
    has_tls: bool,
}

impl Site {
    /// Returns the address with TLS.
    fn secure(&self) -> SocketAddr {
        assert!(self.has_tls);
        let mut address = None;
        // Its line follows that of the address without TLS.
        let is_found = wait_until(LIMIT, || {
            address = self.proxy.addresses().into_iter().find(|other| *other != self.proxy.address);
            address.is_some()
        });
        assert!(is_found);
        address.unwrap()
    }

    /// Sends a request for a URL on a connection of its own. Each field ends with CRLF.
    #[track_caller]
    fn ask(&self, method: &str, url: &str, fields: &str) -> Response {
        let (scheme, rest) = url.split_once("://").unwrap();
        let (host, path) = rest.split_at(rest.find('/').unwrap());
        let request =
            format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{fields}\r\n");
        let bytes = match scheme {
            "https" => exchange(self.tls(host), &request),
            _ => exchange(connect(self.proxy.address).unwrap(), &request),
        };
        parse(&bytes.unwrap())
    }

    #[track_caller]
    fn get(&self, url: &str, fields: &str) -> Response {
        self.ask("GET", url, fields)
    }

    /// Repeats a GET until the store has the response, and returns the hit.
    #[track_caller]
    fn hit(&self, url: &str, fields: &str) -> Response {
        let mut response = self.get(url, fields);
        let is_hit = wait_until(LIMIT, || {
            response = self.get(url, fields);
            response.head.is_hit()
        });
        assert!(is_hit, "{url}: {:?}", response.head);
        response
    }

    /// Returns true if it closes a connection from this address without a response.
    fn refuses(&self, client: IpAddr) -> bool {
        let mut client = Client::connect_from(client, self.proxy.address).unwrap();
        let answer = client.fetch("/", "");
        answer.is_err_and(|error| {
            matches!(
                error.kind(),
                ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
            )
        })
    }

    fn tls(&self, host: &str) -> StreamOwned<ClientConnection, TcpStream> {
        self.tls_on(host, connect(self.secure()).unwrap())
    }

    /// Begins TLS on a connection.
    fn tls_on(&self, host: &str, stream: TcpStream) -> StreamOwned<ClientConnection, TcpStream> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.authority.file("ca.pem")).unwrap()).unwrap();
        let client = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from(host.to_owned()).unwrap();
        let session = ClientConnection::new(Arc::new(client), name).unwrap();
        StreamOwned::new(session, stream)
    }
}

fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    Ok(stream)
}

/// Sends a request, and reads up to the end of the connection.
fn exchange(mut stream: impl io::Read + Write, request: &str) -> io::Result<Vec<u8>> {
    stream.write_all(request.as_bytes())?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[track_caller]
fn parse(bytes: &[u8]) -> Response {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").unwrap() + 4;
    let head = Head::parse(String::from_utf8(bytes[..end].to_vec()).unwrap()).unwrap();
    let body = bytes[end..].to_vec();
    if let (Some(len), false) = (head.len(), body.is_empty()) {
        assert_eq!(body.len() as u64, len);
    }
    Response { head, body }
}

/// Returns the lifetime that is left, by Cache-Status.
#[track_caller]
fn ttl(response: &Response) -> i64 {
    let status = response.head.field("cache-status").unwrap();
    let ttl = status.split(';').find_map(|word| word.trim().strip_prefix("ttl="));
    ttl.unwrap_or_else(|| panic!("{status}")).parse().unwrap()
}

/// Sends a response of an origin. Each field ends with CRLF.
fn send(
    request: &Request,
    stream: &mut TcpStream,
    (status, fields): (&str, &str),
    body: &[u8],
) -> io::Result<()> {
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n{fields}\r\n", body.len());
    stream.write_all(head.as_bytes())?;
    if request.method == "HEAD" { Ok(()) } else { stream.write_all(body) }
}

/// Returns the number of requests that the origin got for a target.
fn count(origin: &Origin, target: &str) -> usize {
    origin.asked().iter().filter(|request| request.target == target).count()
}

#[test]
fn all_are_tested_and_listed() {
    let read_me = fs::read_to_string(format!("{EXAMPLES}/README.md")).unwrap();
    let names =
        fs::read_dir(EXAMPLES).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.filter_map(|name| Some(name.strip_suffix(".toml")?.to_owned())).collect();
    names.sort();
    assert_eq!(names, ["api", "office", "packages", "registry", "static", "wordpress"]);
    assert!(names.iter().all(|name| read_me.contains(&format!("({name}.toml)"))));
}
