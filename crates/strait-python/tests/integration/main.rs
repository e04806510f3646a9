//! Tests of the wheel in a clean virtual environment: captures on a veth pair, files, interrupts,
//! and the libraries that take batches over.
//!
//! Each test runs a program of the folder `python`, sends frames or signals to it, and compares its
//! output with the frames.

mod capture;
mod engines;
mod files;
mod interface;
mod rig;
mod versions;
