//! A finding, and how findings are shown.

use std::fmt::Write as _;
use std::io::IsTerminal as _;

use serde::Serialize;

use super::Face;

/// How it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    /// As it should be.
    Ok,
    /// It works, and could be better.
    Better,
    /// It cannot work.
    Broken,
}

/// One thing that was looked at.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Finding {
    pub(super) face: Face,
    /// A short name that scripts can rely on.
    pub(super) subject: &'static str,
    pub(super) state: State,
    /// What was found, and what it means.
    pub(super) says: String,
    /// A command, or what else to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) fix: Option<String>,
}

/// Gathers the findings of one face.
pub(super) struct Notebook<'a> {
    face: Face,
    findings: &'a mut Vec<Finding>,
}

impl<'a> Notebook<'a> {
    pub(super) fn new(face: Face, findings: &'a mut Vec<Finding>) -> Self {
        Self { face, findings }
    }

    pub(super) fn ok(&mut self, subject: &'static str, says: impl Into<String>) {
        self.note(subject, State::Ok, says.into(), None);
    }

    pub(super) fn better(&mut self, subject: &'static str, says: impl Into<String>, fix: impl Into<String>) {
        self.note(subject, State::Better, says.into(), Some(fix.into()));
    }

    pub(super) fn broken(&mut self, subject: &'static str, says: impl Into<String>, fix: impl Into<String>) {
        self.note(subject, State::Broken, says.into(), Some(fix.into()));
    }

    /// Ok where `good`, else what could be better.
    pub(super) fn judge(&mut self, good: bool, subject: &'static str, says: impl Into<String>, fix: &str) {
        if good { self.ok(subject, says) } else { self.better(subject, says, fix) }
    }

    /// What could not be found out: no verdict, for it may be good.
    pub(super) fn unknown(&mut self, subject: &'static str, error: &strait_sys::Error) {
        let fix = error.advice().map(str::to_owned);
        self.note(subject, State::Better, format!("unknown: {}", error.failure()), fix);
    }

    fn note(&mut self, subject: &'static str, state: State, says: String, fix: Option<String>) {
        let fix = fix.filter(|fix| !fix.is_empty());
        self.findings.push(Finding { face: self.face, subject, state, says, fix });
    }
}

/// The findings as one JSON object: the `interface` that was asked for or null, the program's `version`, the `kernel`,
/// the worst state as `verdict`.
pub(super) fn json(interface: Option<&str>, findings: &[Finding]) -> String {
    let has = |state| findings.iter().any(|finding| finding.state == state);
    let verdict = [State::Broken, State::Better].into_iter().find(|&state| has(state)).unwrap_or(State::Ok);
    let object = serde_json::json!({
        "interface": interface,
        "version": env!("CARGO_PKG_VERSION"),
        "kernel": kernel(),
        "verdict": verdict,
        "findings": findings,
    });
    format!("{object:#}\n")
}

/// The release of the kernel.
pub(super) fn kernel() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// The findings as a page of text.
pub(super) fn text(findings: &[Finding]) -> String {
    let coloured =
        std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let width = findings.iter().map(|finding| finding.subject.len()).max().unwrap_or(0);
    let mut page = String::new();
    for group in findings.chunk_by(|one, other| one.face == other.face) {
        // Writing to a String cannot fail.
        let _ = writeln!(page, "{}", format!("{:?}", group[0].face).to_lowercase());
        for finding in group {
            let state = mark(finding.state, coloured);
            let _ = writeln!(page, "  {state}  {:width$}  {}", finding.subject, finding.says);
            if let Some(fix) = &finding.fix {
                let _ = writeln!(page, "  {:6}  {:width$}  -> {fix}", "", "");
            }
        }
    }
    page
}

/// The state as a word of six columns.
fn mark(state: State, coloured: bool) -> String {
    let (word, colour) = match state {
        State::Ok => ("OK    ", "32"),
        State::Better => ("better", "33"),
        State::Broken => ("BROKEN", "31;1"),
    };
    if coloured { format!("\x1b[{colour}m{word}\x1b[0m") } else { word.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_a_line_a_finding_and_its_fix_below() {
        let mut findings = Vec::new();
        let mut notebook = Notebook::new(Face::Capture, &mut findings);
        notebook.ok("kernel", "Linux 6.1");
        notebook.better("memlock", "64 KiB", "ulimit -l unlimited");
        assert_eq!(
            text(&findings),
            "capture\n  OK      kernel   Linux 6.1\n  better  memlock  64 KiB\n                   -> ulimit -l unlimited\n"
        );
        let json: serde_json::Value = serde_json::from_str(&json(Some("a"), &findings)).unwrap();
        assert_eq!((&json["verdict"], &json["interface"]), (&"better".into(), &"a".into()));
        assert!(json["version"].is_string() && json["kernel"].is_string());
        assert_eq!(json["findings"][1]["state"], "better");
        assert!(json["findings"][0].get("fix").is_none());
    }

    #[test]
    fn what_could_not_be_found_out_is_called_so_and_has_its_remedy_as_the_fix() {
        let mut findings = Vec::new();
        let mut notebook = Notebook::new(Face::Send, &mut findings);
        let error = strait_sys::Error::said(strait_sys::Kind::Failed, "read", "it", "no time");
        notebook.unknown("clock", &error);
        notebook.unknown("clock", &error.remedy("wait"));
        let [bare, helped] = &findings[..] else { panic!("{findings:?}") };
        assert_eq!((bare.state, &*bare.says, &bare.fix), (State::Better, "unknown: read it: no time", &None));
        assert_eq!((&*helped.says, helped.fix.as_deref()), ("unknown: read it: no time", Some("wait")));
    }
}
