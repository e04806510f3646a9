//! Both sides of an HTTP/2 connection (RFC 9113) without I/O and without a clock: frames, header
//! blocks (HPACK, RFC 7541), streams, flow control, and the order of streams (RFC 9218).
//!
//! [`Connection`] takes received bytes and the time, and returns events. Frames to send gather in
//! its output. The payload of DATA frames passes through unread in both directions: the caller may
//! keep it in the kernel.
//!
//! [`Connection::new`] is the server's side, [`Connection::client`] the client's. Both have one
//! parser of frames, one HPACK and one flow control.
//!
//! Each resource that a peer can make this side spend has a limit with a name, [`Abuse`], which the
//! error of a connection that exceeds it carries.
//!
//! ```
//! use strait_http2::{Connection, Event, Limits, PREFACE};
//!
//! let now = std::time::Instant::now();
//! let mut connection = Connection::new(Limits::default(), now);
//! // The preface, empty SETTINGS, and HEADERS of the request GET http://a/.
//! let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
//! let headers = [0, 0, 6, 1, 5, 0, 0, 0, 1, 0x82, 0x86, 0x84, 0x41, 1, b'a'];
//! let bytes = [PREFACE, &settings, &headers].concat();
//! let (mut rest, mut requests) = (&bytes[..], 0);
//! while !rest.is_empty() {
//!     let (used, event) = connection.next(now, rest)?;
//!     if let Some(Event::Request { stream, is_last }) = event {
//!         assert_eq!((stream, is_last, connection.request()?.path), (1, true, Some("/")));
//!         connection.respond(stream, [(&b":status"[..], &b"204"[..])].into_iter(), true);
//!         requests += 1;
//!     }
//!     rest = &rest[used..];
//! }
//! assert_eq!(requests, 1);
//! assert!(!connection.output().is_empty());
//! # Ok::<(), strait_http2::ConnectionError>(())
//! ```

mod client;
#[cfg(test)]
mod client_tests;
mod connection;
mod error;
mod frame;
pub mod hpack;
mod limits;
mod priority;
mod receive;
mod request;
mod response;
mod schedule;
mod send;
mod settings;
mod stream;
#[cfg(test)]
mod tests;

pub use connection::{Connection, Event};
pub use error::{ConnectionError, ErrorCode};
pub use frame::{FRAME_HEAD_BYTES, PREFACE};
pub use limits::{Abuse, Limits};
pub use priority::Priority;
pub use request::{Request, RequestHead};
pub use response::Response;
