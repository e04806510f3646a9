//! The program `strait-bench` over real veth pairs: its benchmarks, its files, its errors.

mod bench;
mod point;
mod proxy;
mod rig;
