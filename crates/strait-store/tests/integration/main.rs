//! The store across processes: what is left of it when one is killed.

mod kill;
mod power;
mod rig;
