//! Change of the targets of a running capture: its limits, and the state that the capture shares
//! with the thread that opens new targets.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::table_output::TableOutput;
use super::target::{self, TARGETS_MAX, Target};
use crate::Error;

/// Maximum number of different URLs that a capture keeps the counts of after their removal.
const FORMER_MAX: usize = 64;

/// Targets of a running capture.
#[derive(Clone, Debug, Default)]
pub(super) struct Present {
    /// Targets that get packets.
    pub(super) open: Vec<Target>,
    /// Removed targets of which the tables are not complete yet.
    pub(super) ending: Vec<Target>,
    /// URLs of all removed targets.
    pub(super) former: Vec<String>,
}

/// Targets of a file that was read again.
pub(super) struct Change {
    /// All targets from now on.
    pub(super) targets: Vec<Target>,
    /// Those of them that are new, open.
    pub(super) opened: Vec<TableOutput>,
}

/// Targets of a running capture, which several threads use.
#[derive(Clone, Default)]
pub(super) struct Shared {
    present: Arc<Mutex<Present>>,
    /// Change that the capture has not made yet.
    next: Arc<Mutex<Option<Change>>>,
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, Present> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes an open target. Its place stays taken until the result is dropped.
    pub(super) fn end(&self, url: &str) -> Ending {
        let mut present = self.lock();
        if let Some(at) = present.open.iter().position(|open| open.to_string() == url) {
            let target = present.open.remove(at);
            present.ending.push(target);
        }
        if !present.former.iter().any(|former| former == url) {
            present.former.push(url.to_owned());
        }
        Ending { shared: self.clone(), url: url.to_owned() }
    }

    /// Passes a change on to the capture.
    pub(super) fn set_next(&self, change: Change) {
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = Some(change);
    }

    /// Returns the change once.
    pub(super) fn take_next(&self) -> Option<Change> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Removed target of which the tables are not complete yet.
pub(super) struct Ending {
    shared: Shared,
    url: String,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.shared.lock().ending.retain(|ending| ending.to_string() != self.url);
    }
}

impl Present {
    /// Returns `targets` as this capture writes their URLs: equal ones can have different paths, as
    /// in file:a/./b.
    pub(super) fn named(&self, targets: Vec<Target>) -> Vec<Target> {
        let named =
            |target: Target| self.open.iter().find(|open| **open == target).cloned().unwrap_or(target);
        targets.into_iter().map(named).collect()
    }

    /// Returns those of `targets` that are not open.
    ///
    /// # Errors
    /// A target has the place of one that gets packets or is not complete yet.
    pub(super) fn new_ones(&self, targets: &[Target]) -> Result<Vec<Target>, Error> {
        let new: Vec<&Target> = targets.iter().filter(|target| !self.open.contains(target)).collect();
        for target in &new {
            if self.ending.contains(target) {
                return Err(Error::Failed(format!(
                    "{target} was removed and is not complete yet: send SIGHUP again when it is"
                )));
            }
            let mut others = self.open.iter().chain(&self.ending);
            if let Some(other) = others.find(|other| target::is_same(other, target)) {
                return Err(target::same(other, target));
            }
        }
        Ok(new.into_iter().cloned().collect())
    }
}

/// Limits the number of removed targets that are completed at a time, and of their kept counts.
pub(super) fn check_removed(present: &Present, targets: &[Target]) -> Result<(), Error> {
    let removed: Vec<&Target> = present.open.iter().filter(|open| !targets.contains(open)).collect();
    if !removed.is_empty() && removed.len() + present.ending.len() > TARGETS_MAX {
        let ending = present.ending.len();
        return Err(Error::Failed(format!(
            "{ending} removed targets are not complete yet: send SIGHUP again when they are"
        )));
    }
    let first = removed.iter().filter(|target| !present.former.contains(&target.to_string()));
    if first.count() + present.former.len() > FORMER_MAX {
        return Err(Error::Failed(format!("the capture has had {FORMER_MAX} other targets: restart it")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_targets_are_limited() {
        let of = |range: std::ops::Range<usize>| -> Vec<Target> {
            range.map(|number| target::parse(&format!("file:/{number}")).unwrap()).collect()
        };
        let present = |open, ending, former: std::ops::Range<usize>| Present {
            open: of(open),
            ending: of(ending),
            former: of(former).iter().map(ToString::to_string).collect(),
        };
        let check =
            |targets, present: Present| check_removed(&present, &of(targets)).map_err(|e| e.to_string());
        assert_eq!(check(0..8, present(8..16, 0..0, 0..0)), Ok(()));
        assert!(check(1..2, present(0..1, 10..18, 0..0)).unwrap_err().starts_with("8 removed targets"));
        assert_eq!(check(0..2, present(0..1, 10..18, 0..64)), Ok(()), "none is removed");
        assert_eq!(check(1..2, present(0..1, 0..0, 0..64)), Ok(()), "its counts are added");
        assert!(check(1..2, present(0..1, 0..0, 1..65)).unwrap_err().contains("64 other targets"));
    }
}
