//! The running proxy: its threads, listening sockets and connections of clients.

pub(crate) mod accept;
mod at_once;
pub(crate) mod checks;
pub(crate) mod client_limits;
pub(crate) mod connection;
pub(crate) mod current;
pub(crate) mod dispatch;
#[cfg(feature = "otlp")]
pub(crate) mod export;
pub(crate) mod http2;
pub(crate) mod listen;
pub(crate) mod names;
mod notices;
mod outputs;
pub(crate) mod proxy;
mod upgrade;
