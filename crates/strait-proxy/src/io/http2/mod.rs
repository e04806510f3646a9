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
//! stream, and `body` the sent ones. `accept`, `stream` and `translate` are for clients; `gather`
//! is the send without a copy. `origin_link`, `origin_stream` and `origin_text` are for origins:
//! there the text of a request is written, and that of the response is read.
//!
//! The connection's task reads and writes the socket. The tasks of streams only move bytes into the
//! output, in the order of their priorities, and only while there is room in it.

pub(crate) mod accept;
mod body;
mod gather;
pub(crate) mod link;
pub(crate) mod origin_link;
pub(crate) mod origin_stream;
mod origin_text;
pub(crate) mod slot;
pub(crate) mod stream;
pub(crate) mod translate;
