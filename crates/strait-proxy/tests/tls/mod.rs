//! TLS with clients and origins, over real sockets, with an authority and certificates of the
//! tests' own.

mod bodies;
mod clients;
mod origin;
mod origins;
mod rig;
mod tunnels;
