//! Options that all benchmarks share: rounds, and files for the results.

use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};

use clap::Args as ClapArgs;
use strait_bench::machine::Machine;
use strait_bench::results::{Results, check_writable, write_file};
use strait_bench::{Progress, report, table};

use strait_program::output::print_text;
use strait_program::{Error, parse};

/// Options of every benchmark.
#[derive(Clone, ClapArgs)]
pub(crate) struct SharedOptions {
    /// Rounds; each measures every point once, and results are medians with their spread
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) rounds: u32,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 1.0, value_parser = measurement_seconds)]
    pub(crate) seconds: f64,
    /// Write the report to this file: one HTML page with plots
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Also write the results to this file, for compare and report
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Note the commit of the measured programs in the results
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    commit: String,
    /// Print the results as one JSON object
    #[arg(long)]
    json: bool,
}

impl SharedOptions {
    /// Measures, and prints and saves the results; after an interruption, those so far.
    pub(crate) fn measure(
        &self,
        measure: impl FnOnce(
            Machine,
            &mut dyn FnMut(&Progress<'_>) -> strait_bench::Result<()>,
        ) -> strait_bench::Result<Results>,
    ) -> Result<(), Error> {
        let machine = Machine::detect(command_line(), self.commit.clone(), program());
        let results = measure(machine, &mut |progress| {
            progress_line(progress);
            self.save(progress.results)
        });
        clear_progress();
        let results = results?;
        self.save_and_print(&results)?;
        match () {
            () if !results.complete => Err(Error::failed("interrupted")),
            () if results.series.iter().all(|series| series.summary.is_empty()) => {
                Err(Error::failed("nothing was measured"))
            }
            () => Ok(()),
        }
    }

    /// Returns these options with `-suffix` at the end of the file names.
    pub(crate) fn with_suffix(&self, suffix: &str) -> Self {
        let named = |path: &Option<PathBuf>| {
            let path = path.as_ref()?;
            let mut name = path.file_stem().unwrap_or_default().to_owned();
            name.push(format!("-{suffix}"));
            let extension = path.extension().unwrap_or_default();
            Some(path.with_file_name(name).with_added_extension(extension))
        };
        Self { html: named(&self.html), save: named(&self.save), ..self.clone() }
    }

    /// Checks that the files can be written, before hours of measuring.
    pub(crate) fn check_files(&self) -> Result<(), Error> {
        let page = self.html.as_deref();
        if self.save.is_some() && self.save.as_deref() == page {
            return Err(Error::usage("--save and --html name the same file"));
        }
        if page.is_some_and(is_svg) {
            return Err(Error::usage(
                "--html writes a page: strait bench report RESULTS PLOT.svg draws a plot",
            ));
        }
        for path in self.save.iter().chain(&self.html) {
            if path.as_os_str() == "-" {
                return Err(Error::usage("give a file: --json prints the results"));
            }
            check_writable(path)?;
        }
        Ok(())
    }

    /// Saves the results so far.
    fn save(&self, results: &Results) -> strait_bench::Result<()> {
        if results.series.is_empty() {
            return Ok(());
        }
        if let Some(path) = &self.save {
            write_file(path, &(results.to_json()? + "\n"))?;
        }
        match &self.html {
            Some(path) => write_file(path, &report::html(std::slice::from_ref(results))),
            None => Ok(()),
        }
    }

    /// Prints the results, also if they cannot be saved.
    fn save_and_print(&self, results: &Results) -> Result<(), Error> {
        let saved = self.save(results);
        let printed = print_text(&if self.json { results.to_json()? + "\n" } else { table::text(results) });
        saved?;
        printed
    }
}

pub(crate) fn is_svg(page: &Path) -> bool {
    page.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("svg"))
}

/// Returns the command line as the user typed it, without the program's directory.
pub(crate) fn command_line() -> String {
    let words = std::env::args().skip(1);
    [strait_program::name().to_owned()].into_iter().chain(words).collect::<Vec<_>>().join(" ")
}

/// Returns name and version of the measured program.
pub(crate) fn program() -> String {
    format!("strait {}", env!("CARGO_PKG_VERSION"))
}

/// Prints the progress, on a terminal only.
pub(crate) fn progress_line(progress: &Progress<'_>) {
    if std::io::stderr().is_terminal() {
        let (at, all, next) = (progress.done + 1, progress.all, &progress.next);
        // A terminal that is gone must not end the measurement.
        let _ = write!(std::io::stderr(), "\r\x1b[K{at} of {all}: {next}");
    }
}

/// Clears the line of the progress.
pub(crate) fn clear_progress() {
    if std::io::stderr().is_terminal() {
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
}

/// Parses the duration of a measurement.
pub(crate) fn measurement_seconds(text: &str) -> Result<f64, String> {
    match parse::seconds(text).map(|duration| duration.as_secs_f64()) {
        Ok(seconds) if (0.1..=600.0).contains(&seconds) => Ok(seconds),
        _ => Err("give 0.1 to 600 seconds".into()),
    }
}
