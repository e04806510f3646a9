//! Rings against a kernel played by the test.
