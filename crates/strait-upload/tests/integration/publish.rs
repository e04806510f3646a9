//! Tests of `strait-upload publish` with a NATS server: each flow is stored once and answered.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use lab::Nats;

use crate::PROGRAM;

/// The program, to which the test writes as a capture does.
pub(crate) struct Publisher {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Publisher {
    fn start(nats: &Nats, variables: &[(&str, &str)]) -> Self {
        Self::to(&nats.url("flows.a"), variables)
    }

    pub(crate) fn to(url: &str, variables: &[(&str, &str)]) -> Self {
        let mut command = Command::new(PROGRAM);
        command.envs(variables.iter().copied());
        Self::start_with(command, url)
    }

    /// Starts the program with its errors in a file.
    pub(crate) fn with_log(url: &str, log: &Path) -> Self {
        let mut command = Command::new(PROGRAM);
        command.stderr(File::create(log).unwrap());
        Self::start_with(command, url)
    }

    fn start_with(mut command: Command, url: &str) -> Self {
        command.args(["publish", url, "fr1-9"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, input, output: BufReader::new(output) }
    }

    /// Writes a batch of flows, which are their numbers.
    fn write(&mut self, first: u64, count: u64) {
        let numbers: Vec<String> = (first..first + count).map(|number| number.to_string()).collect();
        self.write_lines(first, &(numbers.join("\n") + "\n"));
    }

    /// Writes a batch of flows.
    pub(crate) fn write_lines(&mut self, first: u64, lines: &str) {
        self.write_bytes(first, lines.as_bytes());
    }

    /// Writes a batch in the format of the URL.
    pub(crate) fn write_bytes(&mut self, first: u64, flows: &[u8]) {
        writeln!(self.input, "{first} {}", flows.len()).unwrap();
        self.input.write_all(flows).unwrap();
    }

    /// Returns an answer without the numbers of messages and bytes.
    pub(crate) fn answer(&mut self) -> String {
        let line = self.whole_answer();
        let rest = line.strip_prefix('=').and_then(|rest| rest.split_once(' '));
        rest.map_or(line.clone(), |(_, rest)| rest.to_owned())
    }

    pub(crate) fn whole_answer(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line
    }

    /// Closes the input. Returns true after a success.
    pub(crate) fn end(mut self) -> bool {
        drop(self.input);
        self.child.wait().unwrap().success()
    }
}

/// Asserts that each number below `count` is stored once, under its identifier.
fn assert_stored_once(nats: &Nats, count: u64) {
    let stored = nats.messages();
    for message in &stored {
        assert_eq!(
            (&*message.subject, &message.id),
            ("flows.a", &format!("fr1-9:flows.a:json:{}", message.text()))
        );
    }
    let numbers: BTreeSet<u64> = stored.iter().map(|message| message.text().parse().unwrap()).collect();
    assert_eq!((stored.len() as u64, numbers), (count, (0..count).collect()));
}

#[test]
fn flow_that_is_sent_again_is_stored_once() {
    let Some(mut nats) = Nats::up_or_skip() else { return };
    let mut publisher = Publisher::start(&nats, &[]);
    for (first, count) in [(0, 100), (0, 100), (60, 90)] {
        publisher.write(first, count);
        assert_eq!(publisher.answer(), "\n");
    }
    nats.stop();
    nats.start(&[]);
    publisher.write(100, 60);
    assert_eq!(publisher.answer(), "\n", "on another connection");
    assert_stored_once(&nats, 160);
    assert!(publisher.end());
}

#[test]
fn flows_wait_for_a_stream_and_for_a_server_that_starts_again() {
    let Some(mut nats) = Nats::down_or_skip() else { return };
    nats.start(&[]);
    let mut publisher = Publisher::start(&nats, &[]);
    publisher.write(0, 3);
    let answer = publisher.answer();
    assert_eq!(answer, "0,1,2 no stream of the server takes the subject flows.a: create one\n");
    nats.stop();
    // The program has no credentials for this server.
    nats.require_token(Some("SECRET"));
    nats.start(&[]);
    nats.create_stream();
    let mut answer = answer;
    while answer.contains("no stream") {
        publisher.write(0, 3);
        answer = publisher.answer();
    }
    assert!(answer.starts_with("0,1,2 ") && answer.contains("authorization violation"), "{answer:?}");
    assert!(publisher.end());

    let mut publisher = Publisher::start(&nats, &[("NATS_TOKEN", "SECRET")]);
    publisher.write(0, 3);
    assert_eq!(publisher.answer(), "\n");
    let line = std::fs::read_to_string(format!("/proc/{}/cmdline", publisher.child.id())).unwrap();
    assert!(line.contains("flows.a") && !line.contains("SECRET"), "{line}");
    assert_stored_once(&nats, 3);
    assert!(publisher.end());
}

#[test]
fn certificate_of_the_server_is_checked() {
    let Some(mut nats) = Nats::up_or_skip() else { return };
    nats.stop();
    let certified = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let files = ["cert.pem", "key.pem"].map(|name| nats.directory().join(name).to_str().unwrap().to_owned());
    std::fs::write(&files[0], certified.cert.pem()).unwrap();
    std::fs::write(&files[1], certified.signing_key.serialize_pem()).unwrap();
    nats.start(&["--tls", "--tlscert", &files[0], "--tlskey", &files[1]]);
    let url = nats.url("flows.a").replace("nats://", "nats+tls://");
    let mut publisher = Publisher::to(&url, &[]);
    publisher.write(0, 2);
    let answer = publisher.answer();
    assert!(answer.starts_with("0,1 ") && answer.contains("certificate"), "{answer}");
    assert!(publisher.end());
    let mut publisher = Publisher::to(&url, &[("SSL_CERT_FILE", &files[0])]);
    publisher.write(0, 2);
    assert_eq!(publisher.answer(), "\n");
    assert!(publisher.end());

    // A server without TLS gets no flow.
    nats.stop();
    nats.start(&[]);
    let mut publisher = Publisher::to(&url, &[("SSL_CERT_FILE", &files[0])]);
    publisher.write(2, 1);
    assert!(publisher.answer().starts_with("0 "));
    assert!(publisher.end());
    assert_stored_once(&nats, 2);
}

#[test]
fn wrong_credentials_and_input_are_refused() {
    let run = |url: &str, variable: (&str, &str), input: &str| {
        let mut command = Command::new(PROGRAM);
        command.args(["publish", url, "c"]).env_remove("SSL_CERT_DIR").envs([variable]);
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = piped.spawn().unwrap();
        // It may have ended before it reads.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        let output = child.wait_with_output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let url = "nats://127.0.0.1:1/flows";
    let creds = ("NATS_CREDS", "/nonexistent/creds");
    let nothing = ("NATS_OTHER", "");
    for (url, variable, input, expected, words) in [
        (url, creds, "", 2, "read the credentials in /nonexistent/creds, of NATS_CREDS: No such file"),
        (url, ("NATS_USER", "SECRET"), "", 2, "set NATS_CREDS, or NATS_TOKEN, or both NATS_USER and"),
        (url, nothing, "what\n", 1, "the first line of a batch has a number and a length"),
        (url, nothing, "0 9\nshort", 1, "read standard input: "),
        ("nats://user:SECRET@127.0.0.1/flows", nothing, "", 2, "give credentials by NATS_CREDS"),
        (
            "kafka://127.0.0.1:1/flows",
            ("KAFKA_USER", "SECRET"),
            "",
            2,
            "set both KAFKA_USER and KAFKA_PASSWORD",
        ),
        ("kafka+tls://h/f", ("SSL_CERT_FILE", "/nonexistent"), "", 2, "read the certificates to trust: "),
        (url, nothing, "", 0, ""),
    ] {
        let (code, stderr) = run(url, variable, input);
        assert_eq!(code, Some(expected), "{stderr}");
        assert!(
            stderr.contains(words) && stderr.lines().count() <= 1 + usize::from(code == Some(2)),
            "{stderr}"
        );
    }
}
