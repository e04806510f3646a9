//! Input files: patterns of names, and the first byte of standard input.
//!
//! `capture -r -` and `replay -` wait here before they open it, and end on a signal. The reader
//! handles later stalls.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use strait_os::{process, wait};

use crate::Error;

/// Maximum number of files that patterns match.
const FILES_MAX: usize = 100_000;
/// Interval of checks for a termination signal.
const TICK: Duration = Duration::from_millis(100);

/// Returns the files that the user names, by their names or by patterns of glob(7): those that a
/// pattern matches in the order of their names.
pub(crate) fn files(names: &[String]) -> Result<Vec<String>, Error> {
    let mut files = Vec::new();
    for name in names {
        let is_pattern = name.contains(['*', '?', '[']) && !Path::new(name).exists();
        if !is_pattern {
            files.push(name.clone());
            continue;
        }
        let before = files.len();
        let usage = |reason: &str| Error::Usage(format!("{name}: {reason}"));
        for path in glob::glob(name).map_err(|error| usage(&error.to_string()))? {
            let path = path.map_err(|error| Error::Failed(format!("{name}: {error}")))?;
            if path.is_dir() {
                continue;
            }
            let path = path.into_os_string().into_string();
            files.push(path.map_err(|path| usage(&format!("{} is not UTF-8", path.display())))?);
            if files.len() > FILES_MAX {
                return Err(usage(&format!("give at most {FILES_MAX} files")));
            }
        }
        if files.len() == before {
            return Err(Error::Failed(format!("{name}: no such file")));
        }
    }
    Ok(files)
}

/// Returns the file that the user gave in place of a filter, as in `strait capture -r *.pcap`: the
/// shell replaces the pattern. `words` are those of the filter.
pub(crate) fn file_in_filter(words: &[String]) -> Option<&str> {
    const EXTENSIONS: [&str; 3] = ["pcap", "pcapng", "cap"];
    let first = words.first()?;
    let path = Path::new(first);
    let extension = path.extension().unwrap_or_default();
    let is_named_like_one = EXTENSIONS.iter().any(|known| extension.eq_ignore_ascii_case(known));
    // A word of a filter, such as `host`, can also be the name of a file.
    ((is_named_like_one || path.is_file()) && !strait_capture::is_filter(&words.join(" "))).then_some(first)
}

/// Returns true once `file` can be opened without waiting: at once unless it is `-`, else when
/// standard input is readable. Returns false if a signal came first.
///
/// It catches signals only while it waits. Later work, such as compiling a long filter, cannot
/// check a flag, so a signal must then end the process.
pub(crate) fn wait_until_readable(file: Option<&str>) -> Result<bool, Error> {
    if file != Some("-") {
        return Ok(true);
    }
    let terminated = process::on_termination()?;
    let stdin = io::stdin();
    while !terminated.load(Ordering::Relaxed) {
        let [input] = wait::readable([Some(stdin.as_fd())], TICK)?;
        if input.readable || input.failed {
            process::end_on_termination()?;
            return Ok(!terminated.load(Ordering::Relaxed));
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_replaced_by_the_files_that_they_match() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
        for name in ["b.pcap", "a.pcap", "c.txt", "[x].pcap"] {
            std::fs::write(directory.path().join(name), "").unwrap();
        }
        std::fs::create_dir(directory.path().join("d.pcap")).unwrap();
        let found = files(&[path("*.pcap"), path("[x].pcap"), "-".into(), path("new.pcap")]).unwrap();
        let expected = [
            path("[x].pcap"),
            path("a.pcap"),
            path("b.pcap"),
            path("[x].pcap"),
            "-".into(),
            path("new.pcap"),
        ];
        assert_eq!(found, expected);
        let message = |pattern| files(&[path(pattern)]).unwrap_err().to_string();
        assert!(message("*.cap").ends_with("*.cap: no such file"));
        assert!(message("a[").contains("a[: "), "{}", message("a["));
    }
}
