//! Object store for tests: moto's server, which speaks the protocol of Amazon S3.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use crate::{Launch, Process, fetched_or_skip, wait_until};

/// Time limit for the server's start and for a response.
const LIMIT: Duration = Duration::from_secs(100);

/// Value of the field Authorization. moto does not check the signature.
const SIGNED: &str = "AWS4-HMAC-SHA256 Credential=key/20261125/us-east-1/s3/aws4_request, \
    SignedHeaders=host, Signature=0";

/// Address of an object store with the bucket `lake`, which may be down.
#[derive(Debug)]
pub struct Moto {
    program: std::path::PathBuf,
    port: u16,
    process: Option<Process>,
}

impl Moto {
    /// Chooses a port. Skips the test if moto is not installed.
    pub fn down_or_skip() -> Option<Self> {
        let program = fetched_or_skip("moto/bin/moto_server")?;
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
        let port = listener.local_addr().expect("it is bound").port();
        Some(Self { program, port, process: None })
    }

    /// Starts a server. Skips the test if moto is not installed.
    pub fn up_or_skip() -> Option<Self> {
        let mut moto = Self::down_or_skip()?;
        moto.start();
        Some(moto)
    }

    /// Starts the server, and creates the bucket.
    pub fn start(&mut self) {
        let port = self.port.to_string();
        let launch = Launch::new(&self.program).args(["-H", "127.0.0.1", "-p", &port]);
        self.process = Some(launch.spawn().expect("moto starts"));
        let answers = || self.request("PUT", "/lake").is_some();
        assert!(wait_until(LIMIT, answers), "moto answers");
    }

    /// Sets the environment of a program that uses the store.
    pub fn env<'a>(&self, launch: Launch<'a>) -> Launch<'a> {
        launch
            .env("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{}", self.port))
            .env("AWS_ACCESS_KEY_ID", "key")
            .env("AWS_SECRET_ACCESS_KEY", "secret")
            .env("AWS_REGION", "us-east-1")
    }

    /// Returns the keys of all objects, sorted.
    pub fn keys(&self) -> Vec<String> {
        let list = self.request("GET", "/lake?list-type=2").expect("moto is up");
        let list = String::from_utf8(list).expect("XML is text");
        assert!(list.contains("<IsTruncated>false</IsTruncated>"), "{list}");
        let keys = list.split("<Key>").skip(1).filter_map(|rest| rest.split_once("</Key>"));
        let mut keys: Vec<String> = keys.map(|(key, _)| key.to_owned()).collect();
        keys.sort();
        keys
    }

    /// Returns the content of an object.
    pub fn object(&self, key: &str) -> Vec<u8> {
        self.request("GET", &format!("/lake/{key}")).expect("moto is up")
    }

    /// Returns the body of a response; none if the server is down. Panics if it refuses.
    fn request(&self, method: &str, target: &str) -> Option<Vec<u8>> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream.set_read_timeout(Some(LIMIT)).ok()?;
        let head = format!("{method} {target} HTTP/1.0\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n");
        write!(stream, "{head}Authorization: {SIGNED}\r\n\r\n").ok()?;
        let mut response = Vec::new();
        stream.read_to_end(&mut response).ok()?;
        let end = response.windows(4).position(|window| window == b"\r\n\r\n")?;
        let head = String::from_utf8_lossy(&response[..end]).into_owned();
        assert!(head.lines().next().is_some_and(|line| line.contains(" 200 ")), "{method} {target}: {head}");
        Some(response.split_off(end + 4))
    }
}
