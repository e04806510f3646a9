//! Receive and inject packets: a module per kernel path.
