//! Findings, and their formats as text and JSON.

use std::fmt::Write as _;
use std::io::IsTerminal as _;

use serde::Serialize;

use super::args::Area;
use crate::output::printable;
use crate::terminal::{allows_colours, size};

/// Verdict of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    /// Nothing to improve.
    Ok,
    /// Works, but can be improved, or could not be determined.
    Better,
    /// Does not work.
    Broken,
}

/// Result of one check.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Finding {
    pub(super) area: Area,
    /// Short, stable name for scripts.
    pub(super) subject: &'static str,
    pub(super) state: State,
    /// Observation and its consequence, as text.
    pub(super) message: String,
    /// A command or another remedy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) fix: Option<String>,
}

/// Records the findings for one use of Strait.
pub(super) struct Recorder<'a> {
    area: Area,
    findings: &'a mut Vec<Finding>,
}

impl<'a> Recorder<'a> {
    pub(super) fn new(area: Area, findings: &'a mut Vec<Finding>) -> Self {
        Self { area, findings }
    }

    pub(super) fn ok(&mut self, subject: &'static str, message: impl Into<String>) {
        self.note(subject, State::Ok, message.into(), None);
    }

    pub(super) fn better(
        &mut self,
        subject: &'static str,
        message: impl Into<String>,
        fix: impl Into<String>,
    ) {
        self.note(subject, State::Better, message.into(), Some(fix.into()));
    }

    pub(super) fn broken(
        &mut self,
        subject: &'static str,
        message: impl Into<String>,
        fix: impl Into<String>,
    ) {
        self.note(subject, State::Broken, message.into(), Some(fix.into()));
    }

    /// Adds a finding that is ok if `good`, else `better`.
    pub(super) fn judge(&mut self, good: bool, subject: &'static str, message: impl Into<String>, fix: &str) {
        if good { self.ok(subject, message) } else { self.better(subject, message, fix) }
    }

    /// Adds a finding for a property that could not be determined. It is `better` and not `broken`,
    /// because the property may be in order.
    pub(super) fn unknown(&mut self, subject: &'static str, error: &strait_os::Error) {
        let fix = error.advice().map(str::to_owned);
        self.note(subject, State::Better, format!("unknown: {}", error.failure()), fix);
    }

    fn note(&mut self, subject: &'static str, state: State, message: String, fix: Option<String>) {
        let fix = fix.filter(|fix| !fix.is_empty());
        self.findings.push(Finding { area: self.area, subject, state, message, fix });
    }
}

/// Returns the findings as one JSON object with `interface` (a name or null), the program's
/// `version`, `kernel` and `verdict`, which is the worst state.
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

/// Returns the kernel release.
pub(super) fn kernel() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// Columns before the text of a finding, without its subject.
const MARGIN: usize = 2 + 6 + 2 + 2;
/// Minimum width of wrapped text.
const TEXT_COLUMNS_MIN: usize = 24;

/// Returns the findings as a page of text. On a terminal, text is wrapped to its width and commands
/// are not. Without a terminal no line is wrapped, for grep(1).
pub(super) fn text(findings: &[Finding]) -> String {
    let terminal = std::io::stdout().is_terminal();
    let coloured = terminal && allows_colours();
    let own = || size().map_or(80, |size| usize::from(size.ws_col));
    let exported = std::env::var("COLUMNS").ok();
    page(findings, coloured, columns(terminal.then(own), exported.as_deref()))
}

/// Returns the width of a line: `exported` (the value of $COLUMNS) if it is a number, else the
/// terminal's width. Returns `None` without a terminal.
fn columns(terminal: Option<usize>, exported: Option<&str>) -> Option<usize> {
    let terminal = terminal?;
    let columns = exported.and_then(|columns| columns.parse().ok()).unwrap_or(terminal);
    Some(columns).filter(|&columns| columns > 0)
}

fn page(findings: &[Finding], coloured: bool, columns: Option<usize>) -> String {
    let width = findings.iter().map(|finding| finding.subject.len()).max().unwrap_or(0);
    let indent = MARGIN + width;
    let text_columns =
        columns.map_or(usize::MAX, |columns| columns.saturating_sub(indent).max(TEXT_COLUMNS_MIN));
    let mut page = String::new();
    let mut shown: Vec<&Finding> = Vec::new();
    for group in findings.chunk_by(|one, other| one.area == other.area) {
        // Writing to a String cannot fail.
        let _ = writeln!(page, "{}", format!("{:?}", group[0].area).to_lowercase());
        for finding in group {
            let before = shown.iter().find(|before| before.fix == finding.fix && finding.fix.is_some());
            let is_repeated = shown
                .iter()
                .any(|before| before.message == finding.message && before.subject == finding.subject);
            let message = if is_repeated { "as above" } else { &finding.message };
            let mut lines = wrapped(&printable(message), text_columns).into_iter();
            let (state, first) = (mark(finding.state, coloured), lines.next().unwrap_or_default());
            let _ = writeln!(page, "  {state}  {:width$}  {first}", finding.subject);
            for line in lines {
                let _ = writeln!(page, "{:indent$}{line}", "");
            }
            let fix = match (before, &finding.fix) {
                (Some(_), _) if is_repeated => None,
                (Some(before), _) => Some(format!("-> as for {}", before.subject)),
                (None, fix) => fix.as_ref().map(|fix| format!("-> {}", printable(fix))),
            };
            // Not wrapped: a command that is pasted from several lines would run as several.
            if let Some(fix) = fix {
                let _ = writeln!(page, "{:indent$}{fix}", "");
            }
            shown.push(finding);
        }
    }
    page + &summary(findings)
}

/// Wraps `text` at blanks into lines of at most `columns` columns. A longer word has a line of its
/// own, so that it can be copied.
fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= columns => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Returns the last line: the number of findings in each state, and the first fix to apply.
fn summary(findings: &[Finding]) -> String {
    let count = |state| findings.iter().filter(|finding| finding.state == state).count();
    let (broken, better, ok) = (count(State::Broken), count(State::Better), count(State::Ok));
    let mut line = format!("summary: {broken} broken, {better} could be better, {ok} ok");
    let first = |state| findings.iter().find(|finding| finding.state == state && finding.fix.is_some());
    if let Some(finding) = first(State::Broken).or_else(|| first(State::Better)) {
        let fix = printable(finding.fix.as_deref().unwrap_or_default());
        // Writing to a String cannot fail.
        let _ = write!(line, "; first, for {}: {fix}", finding.subject);
    }
    line + "\n"
}

/// Returns the state as a word of six columns.
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
    fn page_has_one_line_per_finding_with_the_fix_below() {
        let mut findings = Vec::new();
        let mut recorder = Recorder::new(Area::Capture, &mut findings);
        recorder.ok("kernel", "Linux 6.1");
        recorder.better("memlock", "64 KiB", "ulimit -l unlimited");
        assert_eq!(
            page(&findings, false, None),
            "capture\n  OK      kernel   Linux 6.1\n  better  memlock  64 KiB\n                   -> ulimit -l unlimited\n\
             summary: 0 broken, 1 could be better, 1 ok; first, for memlock: ulimit -l unlimited\n"
        );
        let json: serde_json::Value = serde_json::from_str(&json(Some("a"), &findings)).unwrap();
        assert_eq!((&json["verdict"], &json["interface"]), (&"better".into(), &"a".into()));
        assert!(json["version"].is_string() && json["kernel"].is_string());
        assert_eq!(json["findings"][1]["state"], "better");
        assert!(json["findings"][0].get("fix").is_none());
    }

    #[test]
    fn text_is_wrapped_and_repetitions_are_shortened() {
        let mut findings = Vec::new();
        for area in [Area::Capture, Area::Send] {
            let mut recorder = Recorder::new(area, &mut findings);
            recorder.better(
                "memory",
                "one two three four five six seven eight nine ten",
                "ulimit -l unlimited",
            );
        }
        Recorder::new(Area::Send, &mut findings).broken("ring", "none", "ulimit -l unlimited");
        let page = page(&findings, false, Some(50));
        let (findings, summary) = page.split_once("summary: ").unwrap();
        assert!(findings.lines().all(|line| line.chars().count() <= 50), "{page}");
        assert_eq!((page.matches("one two").count(), page.matches("-> ulimit").count()), (1, 1), "{page}");
        assert!(page.contains("as above") && page.contains("-> as for memory"), "{page}");
        assert_eq!(summary, "1 broken, 2 could be better, 0 ok; first, for ring: ulimit -l unlimited\n");
    }

    #[test]
    fn fix_is_not_wrapped_on_a_narrow_terminal() {
        let fix = "sudo setcap cap_net_raw,cap_net_admin+ep /usr/local/bin/strait && sudo sysctl -w net.core.bpf_jit_enable=1";
        let mut findings = Vec::new();
        let message = "a capture needs more capabilities than the process has here";
        Recorder::new(Area::Capture, &mut findings).broken("privilege", message, fix);
        let page = page(&findings, false, Some(40));
        assert!(page.lines().any(|line| line.trim_start().strip_prefix("-> ") == Some(fix)), "{page}");
        assert!(!page.contains(message), "{page}");
    }

    #[test]
    fn lines_are_not_wrapped_without_a_terminal() {
        assert_eq!(columns(None, Some("40")), None);
        assert_eq!(columns(Some(90), Some("40")), Some(40));
        for exported in [None, Some(""), Some("wide")] {
            assert_eq!(columns(Some(90), exported), Some(90), "{exported:?}");
        }
    }

    #[test]
    fn undetermined_property_is_reported_as_unknown_with_its_remedy() {
        let mut findings = Vec::new();
        let mut recorder = Recorder::new(Area::Send, &mut findings);
        let error = strait_os::Error::new(strait_os::Kind::Failed, "read", "it", "no time");
        recorder.unknown("clock", &error);
        recorder.unknown("clock", &error.remedy("wait"));
        let [bare, helped] = &findings[..] else { panic!("{findings:?}") };
        assert_eq!(
            (bare.state, &*bare.message, &bare.fix),
            (State::Better, "unknown: read it: no time", &None)
        );
        assert_eq!((&*helped.message, helped.fix.as_deref()), ("unknown: read it: no time", Some("wait")));
    }
}
