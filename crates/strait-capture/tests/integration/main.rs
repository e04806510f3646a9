//! The capture engine over real veth pairs: the same answer on every path, ledgers that close,
//! errors that say why.

mod any;
mod changing;
mod corpus;
mod lanes;
mod ledger;
mod lifecycle;
mod rig;
mod same_answer;
mod userspace;
