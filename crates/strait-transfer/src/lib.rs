//! Sends and relays bytes over TCP. Plans each send, chooses the cheapest mechanism for each part,
//! and counts every byte by its mechanism.
//!
//! A [`Plan`] lists segments: bytes, shared buffers, parts of files, bytes received from a socket.
//! The planner, which is pure, turns them into runs. A [`Sender`] moves the runs on its connection
//! by send, zero-copy send (io_uring's `SEND_ZC`), sendfile or splice. An [`Engine`] holds the
//! state that the senders of a thread share. Zero-copy sends are adaptive: the engine copies on a
//! route where the kernel copies anyway, or where copying costs less ([`route`], [`device`]).
//!
//! ```
//! use std::io::Read;
//! use std::net::{TcpListener, TcpStream};
//! use std::time::Duration;
//! use strait_transfer::{Engine, Options, Plan, Segment, Sender};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let listener = TcpListener::bind("127.0.0.1:0")?;
//! let stream = TcpStream::connect(listener.local_addr()?)?;
//! let (mut peer, _) = listener.accept()?;
//!
//! let mut engine = Engine::new(Options::default())?;
//! let mut body = engine.buffer().ok_or("all buffers are in use")?;
//! body.fill(b'.');
//! let plan = Plan::new()
//!     .with(Segment::Bytes(b"header\n".as_slice().into()))
//!     .with(Segment::Shared(body.freeze(0..100_000)));
//!
//! let mut sender = Sender::new(stream)?;
//! let timeout = Duration::from_secs(10);
//! sender.send(&mut engine, plan, timeout)?;
//! let mut got = vec![0; 100_007];
//! peer.read_exact(&mut got)?;
//! assert_eq!(sender.finish(&mut engine, timeout)?, 0);
//! println!("{}", sender.account());
//! # Ok(())
//! # }
//! ```

pub mod descriptors;
pub mod device;
pub mod engine;
mod error;
pub mod hash;
pub mod offer;
pub mod pipe;
pub mod plan;
pub mod probe;
mod receiver;
pub mod relay;
pub mod route;
mod routes;
mod run;
mod sender;
pub mod tcp;
pub mod tls;

pub use engine::{Engine, Options, ZeroCopy};
pub use error::{Error, Result};
pub use plan::{FilePart, Plan, Segment, StreamPart};
pub use receiver::{Received, Receiver};
pub use sender::{Progress, Sender};
pub use strait_sys::buffer::{BufMut, Frozen};
