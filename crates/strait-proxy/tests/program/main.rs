//! The program `strait-proxy` between real clients and origins: during fills, after a kill, and
//! without descriptors, disk space or time.

mod authority;
mod body;
mod browser;
mod cinema;
mod client;
mod commands;
mod crowds;
mod curl;
mod durable;
mod examples;
mod faults;
mod fills;
mod framing;
mod git;
mod grpc;
mod http2;
mod mistakes;
mod origin;
mod packages;
mod parts;
mod reloads;
mod rig;
mod seeks;
mod servers;
mod service;
mod sizes;
mod soak;
mod upgrades;
mod viewers;
