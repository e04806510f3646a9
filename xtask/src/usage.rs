//! Command line.

/// Usage, printed for unknown arguments.
pub(crate) const USAGE: &str =
    "usage: cargo xtask tidy | layers | prose [--list] [DIRECTORY] | reference [--check [--built]]";
