//! The transfer engine over real sockets: what arrives is what was planned, whatever the peer does.

mod endings;
mod integrity;
mod many;
mod rig;
mod waiting;
