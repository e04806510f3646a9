//! Exact and repeatable counts of the guest's instructions, independent of time.
//!
//! QEMU drives the clock of a metered guest by its instructions (`-icount`), so that timers also
//! fire after the same number of them. A plugin (`lab/vm/meter.c`) counts instructions of the
//! kernel and of programs separately and logs both counts at marks. `lab/vm/pump.c` makes marks and
//! sends frames at almost no cost to the guest; `lab/vm/mark.c` only makes a mark. A program that
//! polls marks its polls, so that those without a result can be left out. Instructions are not
//! time: caches, DMA and NIC registers cost nothing here.

use std::fs;
use std::path::{Path, PathBuf};

use crate::compile;

const PLUGIN: &str = include_str!("../../vm/meter.c");
const PUMP: &str = include_str!("../../vm/pump.c");
const MARK: &str = include_str!("../../vm/mark.c");

/// Processors of a guest whose instructions are in the counts of a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counted {
    All,
    /// The one that makes the mark.
    Own,
}

/// Counts of executed instructions at a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Number of the mark.
    pub id: u32,
    /// Kernel instructions.
    pub kernel: u64,
    /// Instructions of programs.
    pub user: u64,
    /// Those of them in polls that found something.
    pub taken: u64,
    /// Those in blocks that encrypt, if the guest is metered by processor.
    pub cipher: u64,
}

/// Returns QEMU's arguments for a metered guest of `processors` with the marks in `log`.
pub(super) fn arguments(folder: &Path, log: &Path, processors: u32, counted: Counted) -> Vec<String> {
    let plugin = folder.join("meter.so");
    build(PLUGIN, &["-shared", "-fPIC"], &plugin);
    let words = ["-icount", "shift=0,sleep=off", "-rtc", "base=2026-01-01,clock=vm", "-d", "plugin", "-D"];
    let mut arguments: Vec<String> = words.map(str::to_owned).into();
    let calls = match counted {
        Counted::Own => ",calls=own",
        Counted::All if processors > 1 => ",calls=on",
        Counted::All => "",
    };
    arguments.extend([path(log), "-plugin".to_owned(), format!("{}{calls}", path(&plugin))]);
    arguments
}

/// Compiles the program `pump` for the guest.
pub(super) fn pump(folder: &Path) -> PathBuf {
    let program = folder.join("pump");
    build(PUMP, &["-static"], &program);
    program
}

/// Compiles the program `mark` for the guest.
pub(super) fn mark(folder: &Path) -> PathBuf {
    let program = folder.join("mark");
    build(MARK, &["-static"], &program);
    program
}

/// Parses the marks in QEMU's log, in order.
pub(super) fn marks(log: &Path) -> Vec<Mark> {
    let text = fs::read_to_string(log).unwrap_or_default();
    text.lines().filter_map(parse).collect()
}

fn parse(line: &str) -> Option<Mark> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let ["mark", id, "kernel", kernel, "user", user, "taken", taken, "cipher", cipher] = words[..] else {
        return None;
    };
    Some(Mark {
        id: id.parse().ok()?,
        kernel: kernel.parse().ok()?,
        user: user.parse().ok()?,
        taken: taken.parse().ok()?,
        cipher: cipher.parse().ok()?,
    })
}

fn build(source: &str, kind: &[&str], output: &Path) {
    let file = output.with_extension("c");
    fs::write(&file, source).expect("room for a source file");
    compile(&file, kind, output);
}

fn path(path: &Path) -> String {
    path.to_str().expect("a temporary folder has a plain name").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_read_among_other_lines() {
        let mark = Mark { id: 2, kernel: 300, user: 40, taken: 5, cipher: 6 };
        assert_eq!(parse("mark 2 kernel 300 user 40 taken 5 cipher 6"), Some(mark));
        assert_eq!(parse("mark 2 kernel x user 40 taken 5 cipher 6"), None);
        assert_eq!(parse("qemu: something else"), None);
    }
}
