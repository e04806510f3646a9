//! Programs that must not compile: writes to a buffer that the kernel may borrow, and use of a ring
//! from another thread.
//!
//! Each file under `tests/ui` is a program with one mistake; the file next to it has the compiler's
//! message.

#[test]
fn borrowed_memory_cannot_be_written() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
