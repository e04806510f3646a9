//! Programs that must not compile, because they keep a frame, a batch or a ring slot for too long.
//!
//! Each file under `tests/ui` is a program with one mistake; the file beside it has the compiler's
//! error.

#[test]
fn lent_frames_cannot_be_kept() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
