//! Putting a filter in the place of another one: in the kernel, or in this process where it is too
//! large for the kernel.
//!
//! A change that fails half-way is taken back, as its lanes reject every frame until a filter is in
//! place. The lanes are set by the caller: nothing here makes a kernel call.

use strait_filter::cbpf::Program;

use crate::directions::Directions;
use crate::error::Error;
use crate::filter;
use crate::link::{Link, Split};

/// The frames that a filter is for.
#[derive(Clone, Copy)]
pub(crate) struct Placing {
    pub(crate) link: Link,
    pub(crate) directions: Directions,
}

/// The filter that is in place after a change.
#[derive(Debug)]
pub(crate) struct Replaced {
    /// Why it runs in this process, if it does.
    pub(crate) why_here: Option<String>,
    /// Why it is the earlier one, if it is.
    pub(crate) refused: Option<Error>,
}

impl Placing {
    /// Puts `new` in the place of `old`; after an error, `old` again. `set` gives all lanes their
    /// part.
    ///
    /// # Errors
    /// `old` cannot be put back: the lanes reject every frame.
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
