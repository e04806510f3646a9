//! Captures over real veth pairs: equal results on every path, ledgers that balance, clear errors.

mod any;
mod broker;
mod changing;
mod corpus;
mod file;
mod lanes;
mod ledger;
mod lifecycle;
mod owners;
mod rig;
mod same_answer;
mod tap;
mod tap_devices;
mod userspace;
