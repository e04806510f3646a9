//! `--to-file FILE`: file with the targets of tables, one URL a line. SIGHUP reads it again.
//!
//! The file decides where packets are sent: a file that another user could have written is refused.
//! A thread reads it and opens the new targets, as names are looked up and programs are started.
//! The capture exchanges its targets between two batches of packets. A defective file changes
//! nothing.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::OFlags;

use super::target::{self, Target};
use crate::requests::Requests;
use crate::sink::Changed;
use crate::{Error, trust};

/// Maximum bytes of a file: 8 targets, and comments.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// Reads the targets of a file.
pub(super) fn read(path: &Path) -> Result<Vec<Target>, Error> {
    let wrong = |reason: String| Error::Usage(format!("read the targets from {}: {reason}", path.display()));
    let failed = |error: io::Error| Error::Failed(wrong(error.to_string()).to_string());
    let text = text(open(path).map_err(failed)?.map_err(wrong)?).map_err(failed)?;
    text.and_then(|text| targets(&text)).map_err(wrong)
}

/// Opens a regular file that no other user can change. Returns the reason if it is none.
fn open(path: &Path) -> io::Result<Result<File, String>> {
    let path = std::path::absolute(path)?;
    let file = path.canonicalize()?;
    if let Some(untrusted) = trust::untrusted_program(&path, &std::env::current_exe()?) {
        return Ok(Err(format!(
            "another user owns {} or may write to it, and could send packets elsewhere: use a file and a directory that \
             only you and root can change",
            untrusted.display()
        )));
    }
    // A link that was exchanged meanwhile is not followed; a pipe could block.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(&file)?;
    let is_file = file.metadata()?.is_file();
    Ok(if is_file { Ok(file) } else { Err("it is not a regular file".into()) })
}

/// Returns the text of a file, or the reason if it is too long.
fn text(file: File) -> io::Result<Result<String, String>> {
    let mut text = String::new();
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    let is_short = text.len() as u64 <= FILE_BYTES_MAX;
    Ok(if is_short { Ok(text) } else { Err(format!("it has more than {FILE_BYTES_MAX} bytes")) })
}

/// Parses lines: empty ones and those with `#` first are left out. A comment after a URL is
/// refused, as it could be a part of a path.
fn targets(text: &str) -> Result<Vec<Target>, String> {
    let mut targets: Vec<Target> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let (number, line) = (number + 1, line.trim());
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if line.split_whitespace().skip(1).any(|word| word.starts_with('#')) {
            return Err(format!("line {number}: a comment follows the URL: give it a line of its own"));
        }
        let target = target::parse(line).map_err(|reason| format!("line {number}: {reason}"))?;
        if targets.contains(&target) {
            return Err(format!("line {number}: {target} is there twice"));
        }
        targets.push(target);
    }
    if targets.is_empty() { Err("it has no target: give one URL a line".into()) } else { Ok(targets) }
}

/// Function that opens targets for the next change.
type Open = dyn Fn(Vec<Target>) -> Result<(), Error> + Send + Sync;

/// File with the targets of a running capture.
pub(crate) struct WatchedTargets {
    path: PathBuf,
    open: Arc<Open>,
    requests: Requests<Result<(), Error>>,
}

impl WatchedTargets {
    pub(super) fn new(
        path: PathBuf,
        open: impl Fn(Vec<Target>) -> Result<(), Error> + Send + Sync + 'static,
    ) -> Self {
        Self { path, open: Arc::new(open), requests: Requests::default() }
    }

    /// Reads the file again.
    pub(crate) fn request(&self) {
        self.requests.add();
    }

    /// After a request, starts to read the file and to open its new targets. Returns the result
    /// once, some time later.
    pub(crate) fn poll(&self) -> Option<Result<(), Error>> {
        let opened = self.requests.poll("targets", || {
            let (path, open) = (self.path.clone(), Arc::clone(&self.open));
            move || open(read(&path)?)
        });
        opened.map(Result::flatten)
    }

    /// Returns true if a change was requested that the capture has not made.
    pub(crate) fn is_pending(&self) -> bool {
        self.requests.is_pending()
    }

    /// Returns the note for the user about a change.
    pub(crate) fn note(&self, changed: &Result<Changed, Error>) -> String {
        let listed = |word: &str, urls: &[String]| {
            if urls.is_empty() { String::new() } else { format!("; {word} {}", urls.join(" ")) }
        };
        match changed {
            Ok(Changed { added, removed }) => format!(
                "the targets are those of {} now{}{}",
                self.path.display(),
                listed("new:", added),
                listed("removed:", removed)
            ),
            Err(error) => format!("the targets stay as they were: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn lines_are_urls_or_comments() {
        let found = targets("# two\n\n file:/a \r\nkafka://a/b\n#file:/c").unwrap();
        assert_eq!(
            found.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["file:/a", "kafka://a:9092/b"]
        );
        assert_eq!(targets("file:/a#b c\n").unwrap().first().unwrap().to_string(), "file:/a#b c");
        for (text, words) in [
            ("", "it has no target"),
            ("# file:/a\n", "it has no target"),
            ("file:/a\n/srv/lake\n", "line 2: give a directory"),
            ("file:/a\n\nfile:/a\n", "line 3: file:/a is there twice"),
            ("file:/a # main", "line 1: a comment follows the URL"),
            ("file:/a\t#main", "line 1: a comment follows the URL"),
        ] {
            let error = targets(text).unwrap_err();
            assert!(error.starts_with(words), "{text}: {error}");
        }
    }

    #[test]
    fn file_is_regular_short_and_of_a_trusted_user() {
        let directory = tempfile::tempdir().unwrap();
        let [file, link] = ["targets", "link"].map(|name| directory.path().join(name));
        symlink(&file, &link).unwrap();
        let message = |path: &Path| read(path).unwrap_err().to_string();
        assert!(message(&file).contains("No such file"));
        std::fs::write(&file, "file:/a\n").unwrap();
        assert_eq!(read(&link).unwrap().len(), 1, "a link in a directory of this user");
        std::fs::write(&file, "#".repeat(FILE_BYTES_MAX as usize + 1)).unwrap();
        assert!(message(&file).contains("more than 65536 bytes"));
        std::fs::write(&file, b"file:/\xff\n").unwrap();
        assert!(message(&file).contains("UTF-8"));
        std::fs::write(&file, "file:/a\n").unwrap();
        for open in [directory.path(), &file] {
            let before = std::fs::metadata(open).unwrap().permissions();
            std::fs::set_permissions(open, std::fs::Permissions::from_mode(0o777)).unwrap();
            for path in [&file, &link] {
                let error = message(path);
                assert!(error.contains(&format!("another user owns {}", open.display())), "{error}");
            }
            std::fs::set_permissions(open, before).unwrap();
        }
        let below = directory.path().join("below");
        std::fs::create_dir(&below).unwrap();
        assert!(message(&below).contains("not a regular file"));
        assert!(message(Path::new("/dev/null")).contains("another user owns /dev/null"));
    }
}
