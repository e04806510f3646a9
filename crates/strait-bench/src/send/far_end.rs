//! The far end of a benchmark of sends: a thread that reads connections to their ends, or has them acknowledged unread.

use std::io::Read as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use strait_sys::{process, wait};

use super::acknowledge::{Acknowledger, Ends};
use crate::error::{Error, Result};
use crate::wire::End;

/// Bytes read at a time.
const CHUNK_BYTES: usize = 256 << 10;
/// How often to look for a connection.
const LOOK: Duration = Duration::from_millis(1);
/// How long a read waits before it looks whether it is to end.
const TICK: Duration = Duration::from_millis(100);

/// What it does with what comes.
#[derive(Clone, Copy, Debug)]
pub enum Takes {
    /// Reads it.
    Reading,
    /// Acknowledges it unread.
    Acknowledging(Ends),
}

/// A far end. Its thread ends when this is dropped.
#[derive(Debug)]
pub struct FarEnd {
    address: SocketAddr,
    bytes: Arc<AtomicU64>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl FarEnd {
    /// Listens at `end` on `address`, on a free port if that is 0, and takes one connection after the other on `cpus`.
    ///
    /// # Errors
    /// The address is not there, or this process may not run on `cpus`; those of [`Acknowledger::attach`].
    pub fn start(end: &End, address: SocketAddr, takes: Takes, cpus: &[u32]) -> Result<Self> {
        let failed = |source| Error::file(format!("listen on {address}"), source);
        let (listener, acknowledger) = end.run(|| {
            let listener = TcpListener::bind(address).map_err(failed)?;
            listener.set_nonblocking(true).map_err(failed)?;
            let acknowledger = match takes {
                Takes::Reading => None,
                Takes::Acknowledging(ends) => Some(Acknowledger::attach(end.interface(), ends)?),
            };
            Ok::<_, Error>((listener, acknowledger))
        })??;
        let address = listener.local_addr().map_err(failed)?;
        let (bytes, ended) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, end, cpus) = (bytes.clone(), ended.clone(), cpus.to_vec());
        let (tell, told) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            // Whoever starts it waits for this, and has it before the thread goes on.
            let _ = tell.send(if cpus.is_empty() { Ok(()) } else { process::pin_thread_to(&cpus) });
            match acknowledger {
                // The listener stays, unread.
                Some(acknowledger) => acknowledger.run(&end),
                None => read_all(&listener, &count, &end),
            }
        });
        let far_end = Self { address, bytes, ended, thread: Some(thread) };
        match told.recv() {
            Ok(pinned) => pinned.map(|()| far_end).map_err(Error::from),
            Err(_) => Err(Error::Void("the far end did not start".into())),
        }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Bytes read so far.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }
}

impl Drop for FarEnd {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // Whoever measures has seen by the bytes whether it did its part.
            let _ = thread.join();
        }
    }
}

fn read_all(listener: &TcpListener, bytes: &AtomicU64, ended: &AtomicBool) -> Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    while !ended.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((stream, _)) => read(stream, &mut chunk, bytes, ended)?,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => wait::sleep(LOOK),
            Err(error) => return Err(Error::file("accept a connection", error)),
        }
    }
    Ok(())
}

/// Reads to the end, or until `ended`; a reset is an end, too.
fn read(mut stream: TcpStream, chunk: &mut [u8], bytes: &AtomicU64, ended: &AtomicBool) -> Result<()> {
    let failed = |source| Error::file("read from a connection", source);
    stream.set_nonblocking(false).map_err(failed)?;
    stream.set_read_timeout(Some(TICK)).map_err(failed)?;
    while !ended.load(Ordering::Relaxed) {
        match stream.read(chunk) {
            Ok(0) => return Ok(()),
            Ok(read) => drop(bytes.fetch_add(read as u64, Ordering::Release)),
            Err(error) => match error.kind() {
                std::io::ErrorKind::ConnectionReset => return Ok(()),
                std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted => {}
                _ => return Err(failed(error)),
            },
        }
    }
    Ok(())
}
