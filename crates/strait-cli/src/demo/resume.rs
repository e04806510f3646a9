//! An interrupted transfer, and its repetition, which resumes where the first one stopped.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;

use serde_json::json;

use super::child::{Child, Ended, strait};
use super::part::{Outcome, PartResult, Topic};
use super::rig::Rig;
use crate::Error;

pub(super) const TOPIC: Topic = Topic {
    key: "resume",
    title: "An interrupted transfer that resumes",
    next: "{strait} receive -l 127.0.0.1:9000 -o copy.img   # and in another terminal: {strait} send FILE 127.0.0.1:9000",
};

/// Length of the file, and the number of bytes forwarded before the connection breaks.
const FILE_BYTES: usize = 64 << 20;
const FORWARDED_BYTES: usize = 40 << 20;
const PIECE_BYTES: usize = 64 << 10;

/// Runs the part.
pub(super) fn run(rig: &Rig) -> Result<Outcome, Error> {
    let (source, out) = (rig.file("source"), rig.file("out"));
    let content: Vec<u8> = (0..FILE_BYTES).map(|at| (at * 7 + (at >> 10)) as u8).collect();
    fs::write(&source, &content).map_err(|error| failed("write a file to send", &error))?;
    let (source, out_name) = (source.to_string_lossy().into_owned(), out.to_string_lossy().into_owned());

    let (receiver, address) = receive(&out_name)?;
    let forwarder = breaking_forwarder(address).map_err(|error| failed("listen on the loopback", &error))?;
    let first = send(&source, &forwarder)?;
    drop(first);
    drop(receiver.end()?);
    let kept = fs::metadata(rig.file("out.part")).map_or(0, |part| part.len());

    let (receiver, address) = receive(&out_name)?;
    let second = send(&source, &address)?;
    let account = second.json("strait send")?;
    let _ = receiver.end()?.json("strait receive")?;
    let is_same = fs::read(&out).is_ok_and(|received| received == content);
    let moved = account["sendfile"].as_u64().unwrap_or_default();
    let message =
        second.stderr.lines().find(|line| line.starts_with("the other end")).unwrap_or_default().to_owned();
    let lines = vec![
        format!("first time      the connection broke; the receiver kept {kept} of {FILE_BYTES} bytes"),
        format!("second time     {message}: sendfile {moved}"),
        format!("the files are   {}", if is_same { "the same" } else { "DIFFERENT" }),
    ];
    let is_failed = !is_same || kept == 0 || moved.checked_add(kept) != Some(FILE_BYTES as u64);
    let sentence = if !is_same {
        "The received file differs from the sent file.".into()
    } else if !is_failed {
        "Both ends hashed the bytes that had already arrived, and the kernel sent only the rest, from the page cache.".into()
    } else {
        format!(
            "On this machine the transfer was not resumed: {kept} bytes were kept, {moved} were sent again."
        )
    };
    let figures =
        json!({ "bytes": FILE_BYTES, "kept": kept, "sent": moved, "same": is_same, "account": account });
    Ok(Outcome::Complete(PartResult { lines, sentence, is_failed, figures }))
}

fn failed(what: &str, error: &std::io::Error) -> Error {
    Error::Failed(format!("{what}: {error}"))
}

/// Starts a receiver, and returns it with its address.
fn receive(out: &str) -> Result<(Child, String), Error> {
    let mut child = Child::start(strait(&["receive", "--json", "-l", "127.0.0.1:0", "-o", out])?)?;
    let address = child.wait_for("listening on ")?;
    Ok((child, address))
}

fn send(source: &str, address: &str) -> Result<Ended, Error> {
    Child::start(strait(&["send", "--json", source, address])?)?.end()
}

/// Listens for a connection and forwards it to `address`, until [`FORWARDED_BYTES`] have passed.
/// Returns the listening address.
fn breaking_forwarder(address: String) -> std::io::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let near = listener.local_addr()?.to_string();
    thread::spawn(move || {
        // An error breaks the connection earlier, which the figures show.
        let _ = forward(&listener, &address);
    });
    Ok(near)
}

fn forward(listener: &TcpListener, address: &str) -> std::io::Result<()> {
    let (mut sender, _) = listener.accept()?;
    let mut receiver = TcpStream::connect(address)?;
    let (mut back_from, mut back_to) = (receiver.try_clone()?, sender.try_clone()?);
    thread::spawn(move || std::io::copy(&mut back_from, &mut back_to));
    let (mut forwarded, mut piece) = (0, vec![0; PIECE_BYTES]);
    while forwarded < FORWARDED_BYTES {
        let read = sender.read(&mut piece)?;
        if read == 0 {
            break;
        }
        receiver.write_all(&piece[..read])?;
        forwarded += read;
    }
    receiver.shutdown(Shutdown::Both)?;
    sender.shutdown(Shutdown::Both)
}
