//! Scenarios for a proxy: scripts for clients and an origin, over real sockets.
//!
//! A file has any number of scenarios, each for one behaviour. One line is one step. Steps run in
//! order, and only their order determines the sequence of events: no step waits for a fixed time. A
//! step that waits fails after ten seconds, with its line and the received bytes. A scenario also
//! fails if either side received anything unexpected. `docs/internals/scenarios.md` describes the
//! language.
//!
//! ```text
//! scenario a fresh response is served without asking the origin
//!   a sends GET /x
//!   o gets GET /x
//!   o sends 200
//!     Cache-Control: max-age=10
//!     = hello
//!   a gets 200
//!     = hello
//!   clock +5
//!   a sends GET /x
//!   a gets 200
//!     Age: 5
//!     = hello
//! ```

mod check;
mod message;
mod run;
mod script;
mod steps;
mod value;
mod world;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Mutex;
use std::thread;

use script::Scenario;

/// Start of a scenario's clock, in seconds since 1970.
pub const BEGIN_SECONDS: u64 = 1_800_000_000;

/// Setup of a proxy.
#[derive(Clone, Copy, Debug)]
pub struct Setup<'a> {
    /// Configuration from the scenario, as text; may be empty.
    pub config: &'a str,
    /// Address of the origin.
    pub origin: SocketAddr,
    /// True if clients name the origin themselves (forward proxy).
    pub is_forward: bool,
    /// Directory of the scenario, kept when the proxy restarts.
    pub directory: &'a Path,
    /// Time of the clock, in seconds since 1970.
    pub now: u64,
}

/// Running proxy.
pub trait Subject {
    /// Returns its listening address.
    fn address(&self) -> SocketAddr;
    /// Advances its clock.
    fn advance(&self, seconds: u64);
    /// Stops it and closes its connections.
    fn stop(self: Box<Self>);
}

/// Starts a proxy, or returns the reason of a failure.
pub type Start<'a> = &'a (dyn Fn(&Setup<'_>) -> Result<Box<dyn Subject>, String> + Sync);

/// Plays the scenarios of `file`, `together` of them at a time. Returns the names of those that
/// pass and the messages of those that fail.
///
/// # Errors
/// The file cannot be read, or does not parse.
pub fn play(file: &Path, together: usize, start: Start<'_>) -> Result<(Vec<String>, Vec<String>), String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("read {}: {error}", file.display()))?;
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let scenarios = script::parse(&text).map_err(|(line, what)| format!("{name}:{line}: {what}"))?;
    let waiting = Mutex::new(scenarios.iter());
    let (held, failed) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    let next = || lock(&waiting).next();
    let player = || {
        while let Some(scenario) = next() {
            match run::run(scenario, start) {
                Ok(()) => lock(&held).push(scenario.name.clone()),
                Err(failure) => lock(&failed).push(describe(&name, scenario, &failure)),
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..together.max(1) {
            scope.spawn(player);
        }
    });
    let done =
        |list: Mutex<Vec<String>>| list.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    Ok((done(held), done(failed)))
}

/// Failure of a step, with its line.
#[derive(Debug)]
struct Failure {
    line: usize,
    what: String,
}

/// Describes a failure with its file, line and step.
fn describe(file: &str, scenario: &Scenario, failure: &Failure) -> String {
    let step = scenario.steps.iter().find(|step| step.line == failure.line);
    let step = step.map_or("the end", |step| step.text.as_str());
    format!("{file}:{}: {}: {step}: {}", failure.line, scenario.name, failure.what)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
