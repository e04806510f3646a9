//! The standard streams that carry a command's data, checked before the command opens or receives
//! anything.
//!
//! `main` calls it. The runtime puts /dev/null in place of a closed descriptor: a command that
//! wrote its data there would lose all of it and report success. Commands that print only notices
//! run with closed streams too.

use strait_sys::stdio;

use crate::Error;

/// Which streams carry data.
#[derive(Clone, Copy, Default)]
pub(crate) struct Streams {
    pub(crate) input: bool,
    pub(crate) output: bool,
}

impl Streams {
    /// Data on standard output if `is_used`.
    pub(crate) fn output(is_used: bool) -> Self {
        Self { input: false, output: is_used }
    }

    /// Fails if a stream that carries data was closed at the start.
    pub(crate) fn check(self) -> Result<(), Error> {
        if self.input && stdio::is_input_closed() {
            return Err(Error::Failed("standard input is closed, so there is nothing to read".into()));
        }
        if self.output && stdio::is_output_closed() {
            return Err(Error::Failed("standard output is closed, so nothing can be written to it".into()));
        }
        Ok(())
    }
}
