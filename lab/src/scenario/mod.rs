//! Scenarios for a proxy: scripts of what clients and an origin send and must get, over real sockets.
//!
//! A file has any number of scenarios, each of one behaviour. One line is one step, and they are done in order, so that what happens when
//! is told by their order and by nothing else: no step waits for a time. A step that awaits something fails after ten seconds, with its
//! line and with what came instead. A scenario also fails where more came than it awaited, on either side. `docs/internals/scenarios.md`
//! is the language.
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

/// When the clock of a scenario begins, in seconds since 1970.
pub const BEGIN_SECONDS: u64 = 1_800_000_000;

/// What a proxy is started with.
#[derive(Clone, Copy, Debug)]
pub struct Setup<'a> {
    /// The configuration that the scenario gives, as text; may be empty.
    pub config: &'a str,
    /// Where the origin listens.
    pub origin: SocketAddr,
    /// Whether clients name the origin themselves.
    pub is_forward: bool,
    /// A directory of the scenario's own; the same when the proxy is started again.
    pub directory: &'a Path,
    /// What the clock shows, in seconds since 1970.
    pub now: u64,
}

/// A proxy that runs.
pub trait Subject {
    /// Where it listens.
    fn address(&self) -> SocketAddr;
    /// Its clock goes on by so many seconds.
    fn advance(&self, seconds: u64);
    /// It ends, and its connections with it.
    fn stop(self: Box<Self>);
}

/// Starts a proxy, or says why it does not start.
pub type Start<'a> = &'a (dyn Fn(&Setup<'_>) -> Result<Box<dyn Subject>, String> + Sync);

/// Plays the scenarios of `file`, `together` of them at a time; the names of those that hold, and what is said of those that do not.
///
/// # Errors
/// The file cannot be read, or is not in the language.
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
                Err(failure) => lock(&failed).push(said(&name, scenario, &failure)),
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

/// What went wrong, and at which line.
#[derive(Debug)]
struct Failure {
    line: usize,
    what: String,
}

fn said(file: &str, scenario: &Scenario, failure: &Failure) -> String {
    let step = scenario.steps.iter().find(|step| step.line == failure.line);
    let step = step.map_or("the end", |step| step.text.as_str());
    format!("{file}:{}: {}: {step}: {}", failure.line, scenario.name, failure.what)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
