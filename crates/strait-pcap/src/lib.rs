//! `libstrait_pcap.so`: libpcap's live calls on Strait's engine, for programs that know nothing of it.
//!
//! `strait run -- PROGRAM` preloads it, and puts it in libpcap's place for programs that open libpcap by themselves. A
//! live handle is a real handle of `pcap_open_dead`, known to a table here: live calls on it ([`ffi`]) find their
//! [`entry`] and run on `strait-capture` ([`handle`]); all other calls, on it and on every other handle, are libpcap's
//! own. What the user chose for the program ([`choice`]) comes from the environment and from the device's name. Where
//! Strait cannot open a device, libpcap gets the call, unless the user said otherwise.

mod choice;
mod entry;
mod facts;
#[allow(unsafe_code, reason = "C calls it")]
pub mod ffi;
mod handle;
mod notice;
mod waker;
