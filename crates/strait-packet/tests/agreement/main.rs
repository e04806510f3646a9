//! Compares views, flow keys, frames and summaries with those of other programs for the same bytes.
//!
//! The oracles are the etherparse crate and, where it is installed, tcpdump. Test frames are built
//! with etherparse, so that a defect of this crate cannot be on both sides.

mod flows;
mod frames;
mod generated;
mod headers;
mod random;
mod summaries;
