//! Programs and CPUs of a benchmark.

use strait_bench::child::Launcher;
use strait_bench::machine;
use strait_program::Error;
use strait_program::parse::NumberList;

/// Returns the list without repetitions, in its order.
pub(crate) fn without_repetitions<T: Copy + PartialEq>(list: &[T]) -> Vec<T> {
    let mut once = Vec::new();
    for &item in list {
        if !once.contains(&item) {
            once.push(item);
        }
    }
    once
}

/// Returns this program and `strait`, which start the measured programs.
pub(crate) fn launcher() -> Result<Launcher, Error> {
    let own =
        std::env::current_exe().map_err(|error| Error::failed(format!("find this program: {error}")))?;
    let own_strait = own.with_file_name("strait");
    // A program that is missing here may be on the PATH.
    let strait = if own_strait.is_file() { own_strait } else { "strait".into() };
    Ok(Launcher { own, strait })
}

/// Returns the given CPUs, or `otherwise` if none are given.
pub(crate) fn given_or(given: Option<&NumberList>, otherwise: Vec<u32>) -> Vec<u32> {
    given.map_or(otherwise, |list| list.0.clone())
}

/// Returns the first CPU, and the other CPUs. A single CPU is in both lists.
pub(crate) fn cpus_of_both_sides() -> Result<[Vec<u32>; 2], Error> {
    let usable = machine::usable_cpus()?;
    let (first, others) = usable.split_at(1.min(usable.len()));
    Ok([first, if others.is_empty() { first } else { others }].map(<[u32]>::to_vec))
}
