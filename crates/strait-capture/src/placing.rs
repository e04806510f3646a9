//! Replacement of a filter, in the kernel or, if it is too large for the kernel, in this process.
//!
//! The lanes reject every frame until a filter is in place. A change that fails half-way is
//! therefore undone, or the capture would receive nothing. The caller sets the filters of the
//! lanes: this module makes no system call.

use strait_filter::cbpf::Program;

use crate::directions::Directions;
use crate::error::Error;
use crate::filter;
use crate::link::{Link, Split};

/// Frames to which a filter applies.
#[derive(Clone, Copy)]
pub(crate) struct Placing {
    pub(crate) link: Link,
    pub(crate) directions: Directions,
}

/// Filter that is in place after a change.
#[derive(Debug)]
pub(crate) struct Replaced {
    /// Reason for running it in this process; `None` if it runs in the kernel.
    pub(crate) userspace_reason: Option<String>,
    /// Error of the new filter, if the earlier one was restored.
    pub(crate) refused: Option<Error>,
}

impl Placing {
    /// Replaces `old` by `new`, and restores `old` after an error. `set` sets the filters of all
    /// lanes.
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
            Ok(userspace_reason) => Ok(Replaced { userspace_reason, refused: None }),
            Err(refused) => {
                let userspace_reason = self
                    .place(old, &mut set)
                    .or_else(|error| set(self.link.split_to_userspace(old, self.directions, &error)?))?;
                Ok(Replaced { userspace_reason, refused: Some(refused) })
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
                set(link.split_to_userspace(program, directions, &error)?)
            }
            placed => placed,
        }
    }
}

#[cfg(test)]
mod tests;
