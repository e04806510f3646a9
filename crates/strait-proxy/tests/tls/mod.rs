//! TLS with clients and origins, over real sockets, with a certificate authority of the tests.

mod bodies;
mod clients;
mod http2;
mod ocsp;
mod origin;
mod origins;
mod rig;
mod scale;
mod sites;
mod tunnels;
