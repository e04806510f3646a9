//! Runs rounds: every contestant once, then every contestant again, so that a disturbance affects
//! all alike.

use std::panic::{self, AssertUnwindSafe};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::results::{Figures, Results};
use crate::tools::Tools;

/// Settings shared by all benchmarks of a run.
pub(crate) struct Context {
    pub(crate) tools: Tools,
    pub(crate) machine: Machine,
    pub(crate) rounds: usize,
    pub(crate) seconds: f64,
    /// Only points with this in their `benchmark/series`.
    pub(crate) only: Option<String>,
    /// Directory of the results.
    pub(crate) out: PathBuf,
    /// Directory of the disk benchmark.
    pub(crate) disk: PathBuf,
    /// Set by SIGINT; the current point is then the last.
    pub(crate) terminated: &'static AtomicBool,
}

/// One series, with the function that measures a point of it.
pub(crate) struct Contest<'a> {
    pub(crate) name: String,
    pub(crate) measure: Box<dyn Fn() -> Result<Figures> + 'a>,
}

impl<'a> Contest<'a> {
    /// Creates the series `name`, measured by `measure`.
    pub(crate) fn new(name: impl Into<String>, measure: impl Fn() -> Result<Figures> + 'a) -> Self {
        Self { name: name.into(), measure: Box::new(measure) }
    }
}

impl Context {
    /// Returns empty results of this run.
    pub(crate) fn results(&self, name: &'static str, about: &'static str) -> Results {
        Results::new(name, about, self.machine.clone(), self.seconds)
    }

    /// Measures all contests in `rounds` rounds and saves the results after every point.
    pub(crate) fn run(&self, results: &mut Results, contests: &[Contest<'_>], rounds: usize) -> Result<()> {
        results.rounds = rounds;
        for round in 1..=rounds {
            for contest in contests {
                let label = format!("{}/{}", results.name, contest.name);
                if self.only.as_ref().is_some_and(|only| !label.contains(only)) {
                    continue;
                }
                if self.terminated.load(Ordering::Relaxed) {
                    return Ok(());
                }
                let outcome = guarded(&contest.measure);
                eprintln!("{round}/{rounds} {label}: {}", brief(&outcome));
                results.record(&contest.name, outcome);
                results.save(&self.out)?;
            }
        }
        Ok(())
    }
}

/// Turns a panic of the rig into a failed point, so that the run continues.
fn guarded(measure: &dyn Fn() -> Result<Figures>) -> Result<Figures> {
    panic::catch_unwind(AssertUnwindSafe(measure)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        Err(Error::Void(format!("the rig broke: {}", text.unwrap_or_default())))
    })
}

/// Formats the main figures for the progress line.
fn brief(outcome: &Result<Figures>) -> String {
    const SHOWN: [&str; 7] = [
        "offered_pps",
        "delivered_pps",
        "lossfree_pps",
        "loss_percent",
        "cpu_s_per_million",
        "p50_us",
        "p99_us",
    ];
    match outcome {
        Err(error) => format!("FAILED: {error}"),
        Ok(figures) => {
            let shown = |figure: &&str| Some(format!("{figure} {:.3}", figures.get(figure)?));
            SHOWN.iter().filter_map(shown).collect::<Vec<_>>().join("  ")
        }
    }
}
