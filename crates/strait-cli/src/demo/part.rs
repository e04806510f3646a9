//! Output of the demo's parts: figures, one sentence, and the next command to type.

use std::io::{IsTerminal as _, Write as _};

use serde_json::{Value, json};
use strait_program::Failure as _;

use crate::Error;
use crate::output::{print_line, print_text};

/// Topic of a part.
pub(super) struct Topic {
    /// Its name in the JSON object.
    pub(super) key: &'static str,
    pub(super) title: &'static str,
    /// The next command to type; `{strait}` stands for this program.
    pub(super) next: &'static str,
}

/// Results of a complete part.
pub(super) struct PartResult {
    /// Lines of figures.
    pub(super) lines: Vec<String>,
    /// Sentence about the figures.
    pub(super) sentence: String,
    /// True if the figures contradict the documentation: the part has failed.
    pub(super) is_failed: bool,
    pub(super) figures: Value,
}

/// The result of a part.
pub(super) enum Outcome {
    Complete(PartResult),
    /// A privilege, a feature of this machine or a program is missing.
    Skipped(String),
    /// The part failed with an error.
    Failed(String),
}

impl Outcome {
    /// Returns the outcome of a part that ended with an error.
    pub(super) fn of(error: &Error) -> Self {
        let is_missing = matches!(error.exit_code(), REFUSED | NO_PROGRAM);
        let reason = error.to_string();
        if is_missing { Self::Skipped(reason) } else { Self::Failed(reason) }
    }

    /// Returns the failure of the part, if it failed.
    pub(super) fn failure(&self) -> Option<&str> {
        match self {
            Self::Complete(result) => result.is_failed.then_some(&*result.sentence),
            Self::Skipped(_) => None,
            Self::Failed(reason) => Some(reason),
        }
    }
}

/// Exit code of strait for a missing privilege, library or feature.
pub(super) const REFUSED: u8 = 3;
/// Exit code for a missing program.
const NO_PROGRAM: u8 = 127;

/// Progress line of the demo on a terminal.
pub(super) struct Progress {
    is_terminal: bool,
    parts: usize,
    at: usize,
}

impl Progress {
    pub(super) fn new(parts: usize) -> Self {
        Self { is_terminal: std::io::stderr().is_terminal(), parts, at: 0 }
    }

    /// Shows the next part.
    pub(super) fn next(&mut self, what: &str) {
        self.at += 1;
        self.step(what);
    }

    /// Shows a step of the part.
    pub(super) fn step(&self, what: &str) {
        if self.is_terminal {
            // A failed write to the terminal loses the line; the demo goes on.
            let _ = write!(std::io::stderr(), "\r[{}/{}] {what} ...\x1b[K", self.at, self.parts);
        }
    }

    /// Clears the line.
    pub(super) fn clear(&self) {
        if self.is_terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

/// Prints a part.
pub(super) fn print(number: usize, topic: &Topic, outcome: &Outcome) -> Result<(), Error> {
    print_line(&format!("{number}. {}", topic.title))?;
    match outcome {
        Outcome::Complete(result) => {
            result.lines.iter().try_for_each(|line| print_line(&format!("   {line}")))?;
            let mark = if result.is_failed { "FAILED:" } else { "=>" };
            print_line(&format!("   {mark} {}", result.sentence))?;
        }
        // Its next command would not run here either.
        Outcome::Skipped(reason) => return Ok(print_text(&format!("   SKIP: {reason}\n\n"))?),
        Outcome::Failed(reason) => print_line(&format!("   FAILED: {reason}"))?,
    }
    Ok(print_text(&format!("   next: {}\n\n", topic.next.replace("{strait}", &program())))?)
}

/// Returns the name by which the program was called, as it may not be on the PATH.
fn program() -> String {
    std::env::args().next().unwrap_or_else(|| "strait".to_owned())
}

/// Returns the value of a part in the JSON object.
pub(super) fn value(outcome: &Outcome) -> Value {
    match outcome {
        Outcome::Complete(result) if result.is_failed => {
            json!({ "failed": result.sentence, "figures": result.figures })
        }
        Outcome::Complete(result) => result.figures.clone(),
        Outcome::Skipped(reason) => json!({ "skipped": reason }),
        Outcome::Failed(reason) => json!({ "failed": reason }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_missing_privilege_or_program_is_a_skip() {
        for error in [Error::Refused("needs root".into()), Error::NoProgram("tcpdump".into())] {
            let outcome = Outcome::of(&error);
            assert!(outcome.failure().is_none() && value(&outcome)["skipped"].is_string());
        }
        for error in [Error::Failed("disk full".into()), Error::Usage("no such interface".into())] {
            let outcome = Outcome::of(&error);
            assert!(outcome.failure().is_some() && value(&outcome)["failed"].is_string());
        }
    }

    #[test]
    fn broken_promise_is_a_failure() {
        let result = |is_failed| {
            let figures = json!({ "same": false });
            Outcome::Complete(PartResult {
                lines: Vec::new(),
                sentence: "differs".into(),
                is_failed,
                figures,
            })
        };
        assert_eq!(result(true).failure(), Some("differs"));
        assert_eq!(value(&result(true))["figures"]["same"], false);
        assert!(result(false).failure().is_none());
    }
}
