//! HTTP/2 connections of clients. Each stream is presented as a connection of HTTP/1.1 with one
//! request, so that an exchange does not depend on the version.
//!
//! ```text
//!              ┌── Link: one lock ──────────────────┐
//! TCP ── read ─▶ frames ─▶ request as text, in Slot │──▶ poll_read  ─┐
//! or TLS       │                                    │                ├ stream
//!     ◀─ write ─ output ◀─ HEADERS, DATA ◀───────────│◀── poll_write ─┘
//!              └────────────────────────────────────┘
//! ```
//!
//! `strait-http2` has the protocol, `link` the shared connection, `stream` one stream, `gather` the
//! send without a copy, and `translate` the heads. The connection's task reads and writes the
//! socket; the tasks of streams only move bytes into the output, in the order of their priorities,
//! and only while there is room in it.

pub(crate) mod accept;
mod body;
mod gather;
pub(crate) mod link;
pub(crate) mod origin_link;
pub(crate) mod origin_stream;
mod origin_text;
pub(crate) mod stream;
pub(crate) mod translate;
