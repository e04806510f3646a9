//! The program `strait` as a user meets it: its commands over real veth pairs, its files, its errors, its exit codes.

mod disk;
mod endings;
mod files;
mod killed;
mod pipes;
mod reading;
mod rig;
mod rotation;
mod tools;
