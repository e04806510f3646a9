//! HTTP/2 connections of clients and to origins. Each stream is presented as a connection of
//! HTTP/1.1 with one request, so that an exchange does not depend on the version.
//!
//! ```text
//!              ┌── Link: one lock ──────────────────┐
//! TCP ── read ─▶ frames ─▶ request as text, in Slot │──▶ poll_read  ─┐
//! or TLS       │                                    │                ├ stream
//!     ◀─ write ─ output ◀─ HEADERS, DATA ◀───────────│◀── poll_write ─┘
//!              └────────────────────────────────────┘
//! ```
//!
//! `strait-http2` has the protocol, `link` the shared connection, `slot` the received bytes of a
//! stream, and `body` the sent ones. `accept`, `opened`, `stream` and `translate` are for clients;
//! `gather` is the send without a copy, `records` that with TLS in user space. `origin_link`,
//! `origin_stream` and `origin_text` are for origins: there the text of a request is written, and
//! that of the response is read.
//!
//! The connection's task reads the socket, and writes the output. The tasks of streams move bytes
//! into the output, the pipe or records, in the order of their priorities, and only while there is
//! room. They write the pipe and many records at once, as far as the socket takes them.

pub(crate) mod accept;
mod body;
mod gather;
pub(crate) mod link;
pub(crate) mod opened;
pub(crate) mod origin_link;
pub(crate) mod origin_stream;
mod origin_text;
mod records;
pub(crate) mod slot;
pub(crate) mod stream;
pub(crate) mod translate;
