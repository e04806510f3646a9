//! TLS by the kernel (kTLS): sendfile and splice work on such a socket as on any other.
//!
//! After the handshake in user space, the caller installs its keys here, and receives records other
//! than data. Errors are those of `strait-os`.

pub use strait_sys::tls::{Direction, Key, Keys, Record, attach, probe, receive_record, send_end, set_keys};
