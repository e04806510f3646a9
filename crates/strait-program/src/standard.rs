//! The standard streams that carry a command's data, checked before the command opens or receives
//! anything.
//!
//! The runtime replaces a closed descriptor by /dev/null: a command that wrote its data there would
//! lose all of it and report success. Commands that print only notices run with closed streams too.

use strait_os::stdio;

use crate::Error;

/// Standard streams that carry data.
#[derive(Clone, Copy, Default)]
pub struct Streams {
    /// Standard input.
    pub input: bool,
    /// Standard output.
    pub output: bool,
}

impl Streams {
    /// Returns streams with data on standard output if `is_used`.
    pub fn output(is_used: bool) -> Self {
        Self { input: false, output: is_used }
    }

    /// Checks that the streams were open at the start.
    ///
    /// # Errors
    /// A stream that carries data was closed.
    pub fn check(self) -> Result<(), Error> {
        if self.input && stdio::is_input_closed() {
            return Err(Error::Failed("standard input is closed, so there is nothing to read".into()));
        }
        if self.output && stdio::is_output_closed() {
            return Err(Error::Failed("standard output is closed, so nothing can be written to it".into()));
        }
        Ok(())
    }
}
