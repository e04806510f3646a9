//! Opens the targets of a capture: at its start, and further ones while it runs.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::place::Place;
use super::source::Input;
use super::table_output::TableOutput;
use super::tables::{Args, names_of, new_capture, report_recovered};
use super::target::{self, TARGETS_MAX, Target};
use super::target_file::Change;
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

/// Targets of a running capture, which several threads use.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedPresent(Arc<Mutex<Present>>);

impl SharedPresent {
    pub(super) fn lock(&self) -> MutexGuard<'_, Present> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Options with which the targets of a capture are opened.
pub(super) struct Opener {
    pub(super) args: Args,
    /// Size and age of a file.
    pub(super) limits: (Option<u64>, Option<Duration>),
    pub(super) inputs: Vec<Input>,
    /// Socket that looks up names of interfaces.
    pub(super) names: Option<Arc<OwnedFd>>,
    pub(super) has_owners: bool,
    pub(super) is_file: bool,
    pub(super) present: SharedPresent,
}

impl Opener {
    /// Opens targets beside `others`.
    pub(super) fn open(&self, targets: &[Target], others: &[Target]) -> Result<Vec<TableOutput>, Error> {
        let capture = new_capture();
        let places = self.args.places(&capture, targets, others)?;
        places.into_iter().map(|(target, place)| self.tables(&capture, target, place)).collect()
    }

    fn tables(&self, capture: &str, target: &Target, place: Place) -> Result<TableOutput, Error> {
        let (url, names) = (target.to_string(), names_of(&self.inputs, self.names.as_ref(), self.is_file));
        if let Place::Export(exporter) = &place {
            return Ok(TableOutput::export(url, exporter, names, self.args.flow_limits(), self.is_file));
        }
        let mut options = self.args.options(capture, &place, self.limits, self.is_file)?;
        if self.has_owners {
            options.columns = options.columns.with_owner();
        }
        let tables = TableOutput::files(url, options, place, names)?;
        report_recovered(tables.recovered());
        Ok(tables)
    }

    /// Opens and starts those of `targets` that the capture does not have yet.
    ///
    /// # Errors
    /// There are too many targets; a target has the place of one that gets packets
    /// or is not complete yet; a target cannot be opened.
    pub(super) fn change(&self, targets: Vec<Target>) -> Result<Change, Error> {
        let present = self.present.lock().clone();
        target::check(&targets)?;
        // Equal targets can have different paths, as in file:a/./b.
        let present_one =
            |target: Target| present.open.iter().find(|open| **open == target).cloned().unwrap_or(target);
        let targets: Vec<Target> = targets.into_iter().map(present_one).collect();
        check_removed(&targets, &present)?;
        let new: Vec<Target> =
            targets.iter().filter(|target| !present.open.contains(target)).cloned().collect();
        let others = [&present.open[..], &present.ending].concat();
        for target in &new {
            if present.ending.contains(target) {
                return Err(Error::Failed(format!(
                    "{target} was removed and is not complete yet: send SIGHUP again when it is"
                )));
            }
            if let Some(other) = others.iter().find(|other| target::is_same(other, target)) {
                return Err(target::same(other, target));
            }
        }
        let mut opened = self.open(&new, &others)?;
        opened.iter_mut().try_for_each(TableOutput::start)?;
        Ok(Change { targets, opened })
    }
}

/// Limits the number of targets that are completed at a time, and of those whose counts are kept.
fn check_removed(targets: &[Target], present: &Present) -> Result<(), Error> {
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
            |targets, present: Present| check_removed(&of(targets), &present).map_err(|e| e.to_string());
        assert_eq!(check(0..8, present(8..16, 0..0, 0..0)), Ok(()));
        assert!(check(1..2, present(0..1, 10..18, 0..0)).unwrap_err().starts_with("8 removed targets"));
        assert_eq!(check(0..2, present(0..1, 10..18, 0..64)), Ok(()), "none is removed");
        assert_eq!(check(1..2, present(0..1, 0..0, 0..64)), Ok(()), "its counts are added");
        assert!(check(1..2, present(0..1, 0..0, 1..65)).unwrap_err().contains("64 other targets"));
    }
}
