//! Changes of a filter that fail at each of their steps.

use rustix::io::Errno;
use strait_filter::cbpf::Program;

use super::{Placing, Replaced};
use crate::directions::Directions;
use crate::error::Error;
use crate::link::{Link, Split};

/// Replaces one program by another. The first attempts end with these errors of the kernel, later
/// ones succeed. Returns the bytes that the program of each attempt keeps, `None` if the filter
/// runs in this process.
fn replace(errors: &[Errno]) -> (Vec<Option<u32>>, Result<Replaced, Error>) {
    let (old, new) = (Program::accept_all(1), Program::accept_all(2));
    let placing = Placing { link: Link::Own(1), directions: Directions::In };
    let mut attempts = Vec::new();
    let replaced = placing.replace(&old, &new, |Split { kernels, userspace, userspace_reason }| {
        let error = errors.get(attempts.len());
        attempts.push(if userspace.is_some() { None } else { kernels.constant() });
        match error {
            Some(&errno) => Err(strait_sys::Error::os("attach", "a filter", errno.raw_os_error()).into()),
            None => Ok(userspace_reason),
        }
    });
    (attempts, replaced)
}

#[test]
fn filter_too_large_for_the_kernel_runs_in_this_process() {
    let (attempts, replaced) = replace(&[Errno::NOMEM]);
    assert_eq!(attempts, [Some(2), None]);
    let Replaced { userspace_reason, refused } = replaced.unwrap();
    assert!(userspace_reason.is_some() && refused.is_none());
}

#[test]
fn another_error_leaves_the_earlier_filter_in_place() {
    let (attempts, replaced) = replace(&[Errno::IO]);
    assert_eq!(attempts, [Some(2), Some(1)]);
    let Replaced { userspace_reason, refused } = replaced.unwrap();
    assert!(userspace_reason.is_none() && refused.is_some());
}

#[test]
fn earlier_filter_that_ran_in_this_process_is_restored_there() {
    for second in [Errno::NOMEM, Errno::IO] {
        let (attempts, replaced) = replace(&[Errno::IO, second]);
        assert_eq!(attempts, [Some(2), Some(1), None]);
        let Replaced { userspace_reason, refused } = replaced.unwrap();
        assert!(userspace_reason.is_some() && refused.is_some());
    }
}

#[test]
fn earlier_filter_that_cannot_be_restored_is_an_error() {
    let (attempts, replaced) = replace(&[Errno::IO; 4]);
    assert_eq!((attempts.len(), replaced.is_err()), (3, true));
}
