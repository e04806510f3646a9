//! The program `strait-proxy` as its users meet it: between real clients and origins, while it
//! fills, when it is killed, and when descriptors, disk or patience run out.

mod body;
mod browser;
mod client;
mod commands;
mod crowds;
mod curl;
mod durable;
mod faults;
mod fills;
mod framing;
mod git;
mod mistakes;
mod origin;
mod packages;
mod rig;
mod servers;
mod service;
mod sizes;
mod soak;
