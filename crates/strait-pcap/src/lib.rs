//! `libstrait_pcap.so`: libpcap's live calls on Strait's engine, for unmodified programs.
//!
//! `strait run -- PROGRAM` preloads it, and provides it under libpcap's name for programs that load
//! libpcap at run time. A live handle is a real handle of `pcap_open_dead` that is in a table here.
//! Live calls on it ([`ffi`]) find its [`entry`] and use `strait-capture` ([`handle`]). All other
//! calls, on it and on every other handle, go to libpcap. The user's settings for the program
//! ([`choice`]) come from the environment and from the device's name. If Strait cannot open a
//! device, libpcap captures, unless the user has disabled that.

mod choice;
mod entry;
mod expression;
#[allow(unsafe_code, reason = "C calls it")]
pub mod ffi;
mod handle;
mod notice;
mod properties;
mod waker;
