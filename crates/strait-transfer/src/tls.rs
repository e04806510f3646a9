//! TLS that the kernel encrypts and decrypts (kTLS): on such a socket sendfile and splice move data
//! as on any other.
//!
//! Whoever has shaken hands hands over the keys here, and asks for what the peer says besides data.

pub use strait_sys::tls::{Direction, Key, Keys, Record, attach, probe, receive_record, send_end, set_keys};
pub use strait_sys::{Error, Kind, Result};
