//! Tests of the transfer engine over real sockets, with peers that read slowly or not to the end.

mod endings;
mod integrity;
mod many;
mod rig;
mod waiting;
