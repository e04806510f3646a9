//! Moves bytes: what is to be sent is planned, and each part goes by the mechanism that costs least.
//!
//! A [`plan::Plan`] lists segments; the planner, which is pure, makes runs of them.

pub mod plan;
