//! How often benchmarks measure and what becomes of the results: printed, kept, shown as a page.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};

use clap::Args as ClapArgs;
use strait_bench::machine::Machine;
use strait_bench::results::{Results, check_writable, write_file};
use strait_bench::{Progress, report, table};

use crate::Error;
use crate::output::{print_text, tell};

/// What every benchmark is told.
#[derive(Clone, ClapArgs)]
pub(super) struct Kept {
    /// How often everything is measured, in turn; medians and spread are reported
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(super) rounds: u32,
    /// Seconds that each try lasts
    #[arg(long, default_value_t = 1.0, value_parser = try_seconds)]
    pub(super) seconds: f64,
    /// Write the report to this file: one HTML page with plots
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the results to this file as well, for compare and report
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Note the commit of what is measured in the results
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    commit: String,
    /// Print the results as one JSON object
    #[arg(long)]
    json: bool,
}

impl Kept {
    /// Has `measure` measure, and hands the results out; those so far after an interruption.
    pub(super) fn measure(
        &self,
        measure: impl FnOnce(
            Machine,
            &mut dyn FnMut(&Progress<'_>) -> strait_bench::Result<()>,
        ) -> strait_bench::Result<Results>,
    ) -> Result<(), Error> {
        let machine = Machine::look(command_line(), self.commit.clone(), program());
        let results = measure(machine, &mut |progress| {
            progress_line(progress);
            self.keep(progress.results)
        });
        clear_progress();
        let results = results?;
        self.hand_out(&results)?;
        match () {
            () if !results.complete => Err(Error::Failed("interrupted".into())),
            () if results.series.iter().all(|series| series.summary.is_empty()) => {
                Err(Error::Failed("nothing was measured".into()))
            }
            () => Ok(()),
        }
    }

    /// The same with files whose names end with `-suffix`.
    pub(super) fn with_suffix(&self, suffix: &str) -> Self {
        let named = |path: &Option<PathBuf>| {
            let path = path.as_ref()?;
            let mut name = path.file_stem().unwrap_or_default().to_owned();
            name.push(format!("-{suffix}"));
            let extension = path.extension().unwrap_or_default();
            Some(path.with_file_name(name).with_added_extension(extension))
        };
        Self { html: named(&self.html), save: named(&self.save), ..self.clone() }
    }

    /// Refuses files that cannot be written, before hours of measuring.
    pub(super) fn check_files(&self) -> Result<(), Error> {
        let page = self.html.as_deref();
        if self.save.is_some() && self.save.as_deref() == page {
            return Err(Error::Usage("--save and --html name the same file".into()));
        }
        if page.is_some_and(is_svg) {
            return Err(Error::Usage(
                "--html writes a page: strait bench report RESULTS PLOT.svg draws a plot".into(),
            ));
        }
        for path in self.save.iter().chain(&self.html) {
            if path.as_os_str() == "-" {
                return Err(Error::Usage("give a file: --json prints the results".into()));
            }
            check_writable(path)?;
        }
        Ok(())
    }

    /// Writes what was measured so far where the results are to be kept.
    fn keep(&self, results: &Results) -> strait_bench::Result<()> {
        if results.series.is_empty() {
            return Ok(());
        }
        if let Some(path) = &self.save {
            write_file(path, &(results.to_json()? + "\n"))?;
        }
        match &self.html {
            Some(path) => write_file(path, &report::html(results)),
            None => Ok(()),
        }
    }

    /// Prints the results, even where they cannot be kept.
    fn hand_out(&self, results: &Results) -> Result<(), Error> {
        let kept = self.keep(results);
        let printed = print_text(&if self.json { results.to_json()? + "\n" } else { table::text(results) });
        kept?;
        Ok(printed?)
    }
}

pub(super) fn is_svg(page: &Path) -> bool {
    page.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("svg"))
}

/// The line as it was typed, without the program's directory.
fn command_line() -> String {
    let mut words: Vec<String> = std::env::args().collect();
    if let Some(program) = words.first_mut() {
        *program =
            Path::new(program).file_name().map_or(String::new(), |name| name.to_string_lossy().into_owned());
    }
    words.join(" ")
}

fn program() -> String {
    format!("strait {}", env!("CARGO_PKG_VERSION"))
}

/// How far it is, on a terminal only.
fn progress_line(progress: &Progress<'_>) {
    if std::io::stderr().is_terminal() {
        tell(format_args!("\r\x1b[K{} of {}: {}", progress.done + 1, progress.all, progress.next));
    }
}

fn clear_progress() {
    if std::io::stderr().is_terminal() {
        tell(format_args!("\r\x1b[K"));
    }
}

fn try_seconds(text: &str) -> Result<f64, String> {
    match crate::parse::seconds(text).map(|duration| duration.as_secs_f64()) {
        Ok(seconds) if (0.1..=600.0).contains(&seconds) => Ok(seconds),
        _ => Err("give 0.1 to 600 seconds".into()),
    }
}
