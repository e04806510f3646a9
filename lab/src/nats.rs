//! Broker of messages for tests: nats-server with the stream `FLOWS` of the subjects `flows.>`.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::{Launch, Process, fetched_or_skip, wait_until};

/// Time limit for the server's start and for a response.
const LIMIT: Duration = Duration::from_secs(100);

/// Reads of streams so far.
static READS: AtomicU32 = AtomicU32::new(0);

/// Address of a server, which may be down, and the directory of its streams.
#[derive(Debug)]
pub struct Nats {
    program: PathBuf,
    port: u16,
    directory: tempfile::TempDir,
    token: Option<&'static str>,
    process: Option<Process>,
}

/// Stored message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Subject.
    pub subject: String,
    /// Value of the field Nats-Msg-Id.
    pub id: String,
    /// Content.
    pub content: Vec<u8>,
}

impl Stored {
    /// Returns the content as text.
    pub fn text(&self) -> String {
        String::from_utf8(self.content.clone()).expect("the message is text")
    }
}

impl Nats {
    /// Chooses a port. Skips the test if nats-server is not installed.
    pub fn down_or_skip() -> Option<Self> {
        let program = fetched_or_skip("nats-server/usr/sbin/nats-server")?;
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
        let port = listener.local_addr().expect("it is bound").port();
        let directory = tempfile::tempdir().expect("a directory is created");
        Some(Self { program, port, directory, token: None, process: None })
    }

    /// Starts a server with the stream. Skips the test if nats-server is not installed.
    pub fn up_or_skip() -> Option<Self> {
        let mut nats = Self::down_or_skip()?;
        nats.start(&[]);
        nats.create_stream();
        Some(nats)
    }

    /// Requires a token from the next start on; none with `None`.
    pub fn require_token(&mut self, token: Option<&'static str>) {
        self.token = token;
    }

    /// Starts the server with further arguments.
    pub fn start(&mut self, arguments: &[&str]) {
        let port = self.port.to_string();
        let launch = Launch::new(&self.program).args(["-a", "127.0.0.1", "-p", &port, "-js", "-sd"]);
        let launch = launch.arg(self.directory.path()).args(arguments);
        let token = self.token.map_or(Vec::new(), |token| vec!["--auth", token]);
        let process = launch.args(token).spawn().expect("nats-server starts");
        process.wait_for_stderr("Server is ready", LIMIT).expect("nats-server is ready");
        self.process = Some(process);
    }

    /// Kills the server.
    pub fn stop(&mut self) {
        self.process = None;
    }

    /// Returns the value of --to for a subject.
    pub fn url(&self, subject: &str) -> String {
        format!("nats://127.0.0.1:{}/{subject}", self.port)
    }

    /// Returns the directory of the server's files.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Creates the stream.
    pub fn create_stream(&self) {
        self.create_stream_with("");
    }

    /// Creates the stream with further settings in JSON, each after a comma.
    pub fn create_stream_with(&self, settings: &str) {
        let stream = format!(r#"{{"name":"FLOWS","subjects":["flows.>"],"storage":"file"{settings}}}"#);
        self.connect().request("$JS.API.STREAM.CREATE.FLOWS", &stream);
    }

    /// Returns the number of messages in the stream.
    pub fn count(&self) -> usize {
        self.connect().count()
    }

    /// Returns the messages of the stream.
    pub fn messages(&self) -> Vec<Stored> {
        let mut client = self.connect();
        let count = client.count();
        // An earlier consumer still sends to its own subject.
        let subject = format!("stored.{}", READS.fetch_add(1, Ordering::Relaxed));
        client.send(&format!("SUB {subject} 2\r\n"));
        let consumer = format!(
            r#"{{"stream_name":"FLOWS","config":{{"deliver_subject":"{subject}","ack_policy":"none"}}}}"#
        );
        client.publish("$JS.API.CONSUMER.CREATE.FLOWS", "created", &consumer);
        (0..count).map(|_| client.stored()).collect()
    }

    fn connect(&self) -> Client {
        let mut stream = None;
        assert!(wait_until(LIMIT, || {
            stream = TcpStream::connect(("127.0.0.1", self.port)).ok();
            stream.is_some()
        }));
        let stream = stream.expect("it is connected");
        stream.set_read_timeout(Some(LIMIT)).expect("a timeout is set");
        let mut client = Client { stream: BufReader::new(stream) };
        assert!(client.line().starts_with("INFO "));
        let token = self.token.map_or(String::new(), |token| format!(r#","auth_token":"{token}""#));
        client.send(&format!("CONNECT {{\"verbose\":false,\"headers\":true{token}}}\r\n"));
        client
    }
}

/// Connection that speaks the protocol of NATS.
struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    fn send(&mut self, text: &str) {
        self.stream.get_mut().write_all(text.as_bytes()).expect("the server reads");
    }

    fn publish(&mut self, subject: &str, reply: &str, text: &str) {
        self.send(&format!("PUB {subject} {reply} {}\r\n{text}\r\n", text.len()));
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("the server answers");
        line.trim_end().to_owned()
    }

    /// Returns the words of the next message's first line, its header and its content.
    fn message(&mut self) -> (Vec<String>, String, Vec<u8>) {
        loop {
            let line = self.line();
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let number = |word: &String| word.parse::<usize>().expect("a length");
            let (header, all) = match &*words[0] {
                "MSG" => (0, number(&words[words.len() - 1])),
                "HMSG" => (number(&words[words.len() - 2]), number(&words[words.len() - 1])),
                "PING" => {
                    self.send("PONG\r\n");
                    continue;
                }
                _ => panic!("{line}"),
            };
            let mut bytes = vec![0; all + 2];
            self.stream.read_exact(&mut bytes).expect("the whole message");
            bytes.truncate(all);
            let content = bytes.split_off(header);
            return (words, String::from_utf8(bytes).expect("the header is text"), content);
        }
    }

    fn count(&mut self) -> usize {
        let info = self.request("$JS.API.STREAM.INFO.FLOWS", "");
        let count = info.split("\"messages\":").nth(1).expect("the state of the stream");
        let digits: String = count.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().expect("a number")
    }

    /// Returns the next stored message.
    fn stored(&mut self) -> Stored {
        let (words, header, content) = self.message();
        let id = header.lines().find_map(|line| line.strip_prefix("Nats-Msg-Id: ")).unwrap_or_default();
        Stored { subject: words[1].clone(), id: id.to_owned(), content }
    }

    /// Returns the answer to a request, which must succeed.
    fn request(&mut self, subject: &str, text: &str) -> String {
        self.send("SUB answer 1\r\n");
        self.publish(subject, "answer", text);
        let (_, _, answer) = self.message();
        let answer = String::from_utf8(answer).expect("the answer is text");
        assert!(!answer.contains("\"error\""), "{subject}: {answer}");
        answer
    }
}
