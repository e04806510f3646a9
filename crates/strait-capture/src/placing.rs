//! Replacement of a filter, in the kernel or, if it is too large for the kernel, in this process.
//!
//! The lanes reject every frame until a filter is in place, so a change that fails half-way is
//! undone. The caller sets the lanes: this module makes no system call.

use strait_filter::cbpf::Program;

use crate::directions::Directions;
use crate::error::Error;
use crate::filter;
use crate::link::{Link, Split};

/// Frames for which a filter is meant.
#[derive(Clone, Copy)]
pub(crate) struct Placing {
    pub(crate) link: Link,
    pub(crate) directions: Directions,
}

/// Filter that is in place after a change.
#[derive(Debug)]
pub(crate) struct Replaced {
    /// Reason for running it in this process, if it does.
    pub(crate) why_here: Option<String>,
    /// Reason why it is the earlier filter, if it is.
    pub(crate) refused: Option<Error>,
}

impl Placing {
    /// Replaces `old` by `new`, and restores `old` after an error. `set` gives all lanes their
    /// part.
    ///
    /// # Errors
    /// `old` cannot be restored: the lanes reject every frame.
    pub(crate) fn replace(
        self,
        old: &Program,
        new: &Program,
        mut set: impl FnMut(Split) -> Result<Option<String>, Error>,
    ) -> Result<Replaced, Error> {
        match self.place(new, &mut set) {
            Ok(why_here) => Ok(Replaced { why_here, refused: None }),
            Err(refused) => {
                let why_here = self
                    .place(old, &mut set)
                    .or_else(|error| set(self.link.split_here(old, self.directions, &error)?))?;
                Ok(Replaced { why_here, refused: Some(refused) })
            }
        }
    }

    fn place(
        self,
        program: &Program,
        set: &mut impl FnMut(Split) -> Result<Option<String>, Error>,
    ) -> Result<Option<String>, Error> {
        let Self { link, directions } = self;
        match set(link.split(program, directions)?) {
            Err(error) if filter::may_be_too_large(&error) => {
                set(link.split_here(program, directions, &error)?)
            }
            placed => placed,
        }
    }
}

#[cfg(test)]
mod tests;
