//! Input and output: sockets with and without TLS, buffers, pipes, deadlines, and body forwarding.
//!
//! Nothing here knows the cache or a worker: functions take the few values that they need.

pub(crate) mod buffer;
pub(crate) mod carrier;
pub(crate) mod clock;
pub(crate) mod copy_buffer;
pub(crate) mod deadline;
pub(crate) mod forward;
pub(crate) mod framing;
pub(crate) mod gate;
pub(crate) mod head;
pub(crate) mod http2;
pub(crate) mod kept;
pub(crate) mod low_water;
pub(crate) mod moved;
pub(crate) mod pace;
pub(crate) mod piece;
pub(crate) mod socket;
pub(crate) mod splice;
pub(crate) mod stream;
pub(crate) mod tcp;
pub(crate) mod tls;
pub(crate) mod tunnel;
pub(crate) mod turn;
pub(crate) mod unix;
