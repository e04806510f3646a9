//! What must not compile: touching a buffer that may be lent, or a ring from another thread.
//!
//! Each file under `tests/ui` is a program with one mistake; beside it stands what the compiler
//! says.

#[test]
fn what_may_be_lent_cannot_be_touched() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
