//! What must not compile: keeping a frame, a batch or a ring slot longer than it is lent.
//!
//! Each file under `tests/ui` is a program with one mistake; beside it stands what the compiler
//! says.

#[test]
fn what_is_lent_cannot_be_kept() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
