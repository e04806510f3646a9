//! Far end of the send benchmark: a thread that reads connections to their end, or acknowledges
//! them without reading.

use std::io::{ErrorKind, Read as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use strait_os::process;

use super::acknowledge::{Acknowledger, Ends};
use crate::error::{Error, Result};
use crate::wire::End;

/// Bytes of a read.
const CHUNK_BYTES: usize = 256 << 10;
/// Limit of concurrent connections; more wait in the listener's queue.
const CONNECTIONS_MAX: usize = 1024;
/// Interval between two checks of the end flag.
const TICK: Duration = Duration::from_millis(100);

/// Treatment of received data.
#[derive(Clone, Copy, Debug)]
pub enum Takes {
    /// Reads it.
    Reading,
    /// Acknowledges it without reading.
    Acknowledging(Ends),
}

/// Far end. Dropping it ends its thread.
#[derive(Debug)]
pub struct FarEnd {
    address: SocketAddr,
    bytes: Arc<AtomicU64>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl FarEnd {
    /// Listens at `end` on the port of `address`, or a free one if that is 0, and takes all
    /// connections on `cpus`. Except on the loopback, it listens on every address of the end.
    ///
    /// # Errors
    /// The address is not available, or this process may not run on `cpus`; errors of
    /// [`Acknowledger::attach`].
    pub fn start(end: &End, address: SocketAddr, takes: Takes, cpus: &[u32]) -> Result<Self> {
        let failed = |source| Error::file(format!("listen on {address}"), source);
        let (listener, acknowledger) = end.run(|| {
            let listener = TcpListener::bind(listens_on(address)).map_err(failed)?;
            listener.set_nonblocking(true).map_err(failed)?;
            let acknowledger = match takes {
                Takes::Reading => None,
                Takes::Acknowledging(ends) => Some(Acknowledger::attach(end.interface(), ends)?),
            };
            Ok::<_, Error>((listener, acknowledger))
        })??;
        let address = SocketAddr::new(address.ip(), listener.local_addr().map_err(failed)?.port());
        let (bytes, ended) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, end, cpus) = (bytes.clone(), ended.clone(), cpus.to_vec());
        let (started_sender, started) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            // Return only after the thread is pinned.
            let _ = started_sender.send(if cpus.is_empty() { Ok(()) } else { process::pin_thread_to(&cpus) });
            match acknowledger {
                // The listener stays open, unread.
                Some(acknowledger) => acknowledger.run(&end),
                None => read_all(&listener, &count, &end),
            }
        });
        let far_end = Self { address, bytes, ended, thread: Some(thread) };
        match started.recv() {
            Ok(pinned) => pinned.map(|()| far_end).map_err(Error::from),
            Err(_) => Err(Error::Invalid("the far end did not start".into())),
        }
    }

    /// Returns the listening address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the number of bytes read so far.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }
}

impl Drop for FarEnd {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // Errors are ignored: the number of read bytes shows whether all arrived.
            let _ = thread.join();
        }
    }
}

/// A private end has several addresses and is unreachable from outside, so listen on all of them.
fn listens_on(address: SocketAddr) -> SocketAddr {
    let ip = if address.ip().is_loopback() { address.ip() } else { IpAddr::from(Ipv4Addr::UNSPECIFIED) };
    SocketAddr::new(ip, address.port())
}

/// Reads every connection to its end.
fn read_all(listener: &TcpListener, bytes: &AtomicU64, ended: &AtomicBool) -> Result<()> {
    let (mut streams, mut chunk) = (Vec::new(), vec![0; CHUNK_BYTES]);
    while !ended.load(Ordering::Relaxed) {
        let ready = wait_for(listener, &streams)?;
        for number in (0..streams.len()).rev().filter(|number| ready[1 + number]) {
            if !read(&mut streams[number], &mut chunk, bytes)? {
                streams.swap_remove(number);
            }
        }
        if ready[0] && streams.len() < CONNECTIONS_MAX {
            streams.extend(accept(listener)?);
        }
    }
    Ok(())
}

/// Waits for an event or the timeout. Returns true for the listener, and for each stream after it,
/// if it is ready.
fn wait_for(listener: &TcpListener, streams: &[TcpStream]) -> Result<Vec<bool>> {
    let streams = streams.iter().map(|stream| PollFd::new(stream, PollFlags::IN));
    let mut all: Vec<_> = std::iter::once(PollFd::new(listener, PollFlags::IN)).chain(streams).collect();
    match poll(&mut all, Timespec::try_from(TICK).ok().as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(all.iter().map(|one| !one.revents().is_empty()).collect()),
        Err(error) => Err(Error::file("wait for a connection", error)),
    }
}

/// Returns the next connection; None if it was aborted meanwhile.
fn accept(listener: &TcpListener) -> Result<Option<TcpStream>> {
    let failed = |source| Error::file("accept a connection", source);
    match listener.accept() {
        Ok((stream, _)) => {
            stream.set_nonblocking(true).map_err(failed)?;
            Ok(Some(stream))
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

/// Reads once; returns false at the end or after a reset.
fn read(stream: &mut TcpStream, chunk: &mut [u8], bytes: &AtomicU64) -> Result<bool> {
    match stream.read(chunk) {
        Ok(0) => Ok(false),
        Ok(read) => {
            bytes.fetch_add(read as u64, Ordering::Release);
            Ok(true)
        }
        Err(error) => match error.kind() {
            ErrorKind::ConnectionReset => Ok(false),
            ErrorKind::WouldBlock | ErrorKind::Interrupted => Ok(true),
            _ => Err(Error::file("read from a connection", error)),
        },
    }
}
