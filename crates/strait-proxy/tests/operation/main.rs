//! What whoever runs the proxy sees of it and does to it, over real sockets.

mod admin;
mod chains;
mod changes;
mod churn;
mod clients;
mod log;
mod origins;
mod rig;
