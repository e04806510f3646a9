//! The program `strait` as a user meets it: its commands over real veth pairs, its files, its
//! errors, its exit codes.

mod any;
mod bench;
mod bench_proxy;
mod closed;
mod demo;
mod disk;
mod doctor;
mod endings;
mod external;
mod files;
mod generate;
mod habits;
mod interrupted;
mod killed;
mod links;
mod pipes;
mod planted;
mod reading;
mod refusals;
mod relay;
mod replay;
mod rig;
mod rotation;
mod run;
mod setup;
mod shell;
mod tools;
mod top;
mod transfer;
mod verified;
