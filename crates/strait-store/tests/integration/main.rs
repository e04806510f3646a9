//! The store across processes: recovery after one is killed, and after a power loss.

mod churn;
mod kill;
mod power;
mod rig;
