//! The program `strait proxy` as its users meet it: between real clients and origins, while it fills, when it is killed, and when
//! descriptors, disk or patience run out.

mod body;
mod client;
mod crowds;
mod durable;
mod fills;
mod framing;
mod mistakes;
mod origin;
mod rig;
mod sizes;
