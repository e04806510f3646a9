//! `strait send` and `strait receive` end on a signal or a closed connection while they hash.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};

use lab::{Launch, Process};
use rustix::process::Signal;

use crate::rig::{LIMIT, STRAIT};
use crate::transfer::{Files, Receiver};

/// Bytes of a sparse file that takes longer to hash than the time limit of a test.
const ENDLESS: u64 = 4 << 40;

/// Waits for the line `wait`, which the other end sends while it hashes.
fn wait_for_wait(stream: &TcpStream) {
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let lines = BufReader::new(stream).lines();
    assert!(lines.map_while(Result::ok).any(|line| line == "wait"));
}

fn endless(files: &Files, name: &str) {
    File::create(files.path(name)).unwrap().set_len(ENDLESS).unwrap();
}

/// Starts a sender that hashes the bytes that its receiver claims to have.
fn hashing_sender(files: &Files) -> (Process, TcpStream) {
    endless(files, "source");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (source, address) = (files.path("source"), listener.local_addr().unwrap().to_string());
    let sender = Launch::new(STRAIT).arg("send").arg(source).arg(address).spawn().unwrap();
    let (stream, _) = listener.accept().unwrap();
    writeln!(&stream, "have={ENDLESS}").unwrap();
    wait_for_wait(&stream);
    (sender, stream)
}

#[test]
fn hashing_sender_ends_on_a_signal() {
    let files = Files::with_source(0);
    let (sender, _stream) = hashing_sender(&files);
    sender.signal(Signal::TERM);
    let finished = sender.wait(LIMIT).unwrap();
    assert!(finished.stderr.contains("interrupted"), "{}", finished.stderr);
}

#[test]
fn hashing_sender_ends_when_its_receiver_disconnects() {
    let files = Files::with_source(0);
    let (sender, stream) = hashing_sender(&files);
    drop(stream);
    let finished = sender.wait(LIMIT).unwrap();
    assert!(finished.stderr.contains("closed the connection"), "{}", finished.stderr);
}

/// Starts a receiver that hashes an existing part, and a sender that has hashed its own.
fn hashing_receiver(files: &Files) -> (Receiver, TcpStream) {
    endless(files, "out.part");
    let receiver = Receiver::into(&files.path("out"));
    let stream = TcpStream::connect(&receiver.address).unwrap();
    writeln!(&stream, "strait-send 4 length={ENDLESS}\nbegins={ENDLESS} hash=0000000000000000").unwrap();
    wait_for_wait(&stream);
    (receiver, stream)
}

#[test]
fn hashing_receiver_ends_on_a_signal() {
    let files = Files::with_source(0);
    let (receiver, _stream) = hashing_receiver(&files);
    receiver.signal(Signal::TERM);
    let finished = receiver.end();
    assert!(finished.stderr.contains("interrupted"), "{}", finished.stderr);
}

#[test]
fn hashing_receiver_listens_again_when_its_sender_disconnects() {
    let files = Files::with_source(0);
    let (receiver, stream) = hashing_receiver(&files);
    drop(stream);
    receiver.wait_for_stderr("; listening on");
    receiver.signal(Signal::TERM);
    let finished = receiver.end();
    assert!(finished.stderr.contains("closed the connection"), "{}", finished.stderr);
}
