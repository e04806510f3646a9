//! Static files of a route: opens the file of a path below a directory, and sends it by sendfile.
//!
//! The kernel resolves the path below the directory (openat2(2), `RESOLVE_BENEATH`), so that
//! neither `..` nor a symbolic link leads out of it. Directories are not listed.

use std::ffi::OsStr;
use std::ops::Range;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use rustix::fd::OwnedFd;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, Stat, fstat, open, openat2};
use rustix::io::Errno;
use strait_http::coding::{Coding, preferred};
use strait_http::conditional::{fails_precondition, is_not_modified, range_counts};
use strait_http::fields::Fields;
use strait_http::head;
use strait_http::path::resolved;
use strait_http::range::{self, Wanted, content_range};
use strait_http::target::Uri;
use strait_transfer::descriptors::Share;

use crate::config::rewrite::Rewrite;
use crate::config::sites::{Directory, Manner};
use crate::io::head::{push_date, push_field, push_status_line};
use crate::observe::access::Outcome;
use crate::serve::exchange::{Exchange, ExchangeError};
use crate::serve::response::{Framing, ResponseOptions, write_end};
use crate::serve::route::REWRITTEN;

/// File of a directory.
const INDEX: &[u8] = b"index.html";
/// Only hidden directory that is served (RFC 8615).
const WELL_KNOWN: &[u8] = b".well-known";

/// Media types by the end of a name. Text is UTF-8.
const MEDIA_TYPES: [(&str, &str); 30] = [
    ("avif", "image/avif"),
    ("bin", "application/octet-stream"),
    ("css", "text/css; charset=utf-8"),
    ("csv", "text/csv; charset=utf-8"),
    ("gif", "image/gif"),
    ("gz", "application/gzip"),
    ("htm", "text/html; charset=utf-8"),
    ("html", "text/html; charset=utf-8"),
    ("ico", "image/x-icon"),
    ("jpeg", "image/jpeg"),
    ("jpg", "image/jpeg"),
    ("js", "text/javascript; charset=utf-8"),
    ("json", "application/json"),
    ("m4a", "audio/mp4"),
    ("md", "text/markdown; charset=utf-8"),
    ("mjs", "text/javascript; charset=utf-8"),
    ("mp3", "audio/mpeg"),
    ("mp4", "video/mp4"),
    ("pdf", "application/pdf"),
    ("png", "image/png"),
    ("svg", "image/svg+xml"),
    ("txt", "text/plain; charset=utf-8"),
    ("wasm", "application/wasm"),
    ("webm", "video/webm"),
    ("webmanifest", "application/manifest+json"),
    ("webp", "image/webp"),
    ("woff", "font/woff"),
    ("woff2", "font/woff2"),
    ("xml", "application/xml"),
    ("zip", "application/zip"),
];

/// Open file, as it is sent.
struct Static {
    file: OwnedFd,
    stat: Stat,
    /// Coding of a compressed file in place of the named one.
    coding: Option<Coding>,
    /// True if the choice of the file depends on Accept-Encoding.
    varies: bool,
}

/// Returns the end of the name of a compressed file.
fn ending(coding: Coding) -> &'static [u8] {
    match coding {
        Coding::Zstd => b".zst",
        Coding::Brotli => b".br",
        Coding::Gzip => b".gz",
    }
}

/// Returns true if a path ends with a slash.
fn has_slash(path: &str) -> bool {
    path.split('?').next().is_some_and(|path| path.ends_with('/'))
}

/// Bytes of a file for a request.
enum Selected {
    Whole,
    Part(Range<u64>),
    NotModified,
    Unsatisfiable,
    /// Another one than the request demands.
    Other,
}

impl Exchange<'_, '_> {
    /// Answers with the file of `uri` below the directory of its route. Returns true if the
    /// connection can carry another request.
    pub(crate) async fn answer_with_file(
        &mut self,
        uri: &Uri<'_>,
        dir: &Directory,
        manner: Manner<'_>,
    ) -> Result<bool, ExchangeError> {
        if !matches!(self.request.method, "GET" | "HEAD") {
            return self.answer_fixed((405, b"Allow: GET, HEAD\r\n", &[])).await;
        }
        let (slash, path) = uri.origin_form("GET");
        let mut path = format!("{slash}{path}");
        if let Some(rewrite) = manner.rules.and_then(|rules| rules.rewrite.as_ref()) {
            let new = rewrite.apply(&path).ok_or_else(|| ExchangeError::Refuse(400, REWRITTEN.to_owned()))?;
            let is_begin = matches!(rewrite, Rewrite::Begin { .. }) && !dir.is_exact;
            if is_begin && !has_slash(&path) && has_slash(&new) {
                return self.redirect_to_directory(uri).await;
            }
            path = new;
        }
        let name = name_of(&path).ok_or_else(not_found)?;
        let _descriptor = self.count_file()?;
        let (file, stat) = open_below(&dir.path, &name).map_err(refused)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {
                let plain = Static { file, stat, coding: None, varies: false };
                let found = if dir.is_precompressed { self.coded(&dir.path, &name, plain) } else { plain };
                self.send_static(&found, &name).await
            }
            FileType::Directory => self.redirect_to_directory(uri).await,
            _ => Err(not_found()),
        }
    }

    /// Counts the file descriptor of a file. If the budget is used up, closes idle pipes. A file is
    /// open as long as a slow client reads, so it leaves what pipes leave to new connections.
    fn count_file(&self) -> Result<Share, ExchangeError> {
        let take = || self.worker.shared.descriptors.take_for_pipe(1);
        let share = take().or_else(|| {
            self.worker.pipes.borrow_mut().clear();
            take()
        });
        share.ok_or_else(|| refused(Errno::MFILE))
    }

    /// Redirects to a directory's own path, which ends with a slash, so that relative references in
    /// its index work.
    async fn redirect_to_directory(&mut self, uri: &Uri<'_>) -> Result<bool, ExchangeError> {
        let scheme = if self.client.socket.is_encrypted() { "https" } else { "http" };
        let (path, query) = uri.path.split_at(uri.path.find('?').unwrap_or(uri.path.len()));
        // A whole URI: a path that begins with two slashes would name another host.
        let location = format!("{scheme}://{}{path}/{query}", uri.authority);
        let mut field_lines = Vec::new();
        push_field(&mut field_lines, "Location", location.as_bytes());
        self.answer_fixed((301, &field_lines, &[])).await
    }

    /// Returns the compressed file beside a file that the client prefers, or that file. A file that
    /// is compressed itself has none.
    fn coded(&self, dir: &Path, name: &[u8], plain: Static) -> Static {
        if Coding::ALL.into_iter().any(|coding| name.ends_with(ending(coding))) {
            return plain;
        }
        let mut offered = Coding::ALL.to_vec();
        while let Some(coding) = preferred(&self.request.fields, &offered) {
            if let Ok((file, stat)) = open_below(dir, &[name, ending(coding)].concat())
                && FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
            {
                return Static { file, stat, coding: Some(coding), varies: true };
            }
            offered.retain(|other| *other != coding);
        }
        Static { varies: true, ..plain }
    }

    async fn send_static(&mut self, found: &Static, name: &[u8]) -> Result<bool, ExchangeError> {
        let length = u64::try_from(found.stat.st_size).unwrap_or(0);
        let field_lines = field_lines(found, length, name, self.worker.now());
        self.client.record.coding = found.coding.map(Coding::name);
        let selected = self.select_static(&field_lines, length);
        let range = match selected {
            Selected::NotModified => return self.answer_fixed((304, &field_lines, &[])).await,
            Selected::Unsatisfiable => {
                let line = format!("Content-Range: bytes */{length}\r\n");
                return self.answer_fixed((416, line.as_bytes(), &[])).await;
            }
            Selected::Other => return self.answer_fixed((412, &[], &[])).await,
            Selected::Whole => 0..length,
            Selected::Part(ref range) => range.clone(),
        };
        let status = if matches!(selected, Selected::Part(_)) { 206 } else { 200 };
        let keeps_alive = self.options.keeps_alive && !self.upload.has_body();
        let options = ResponseOptions { keeps_alive, ..self.options };
        let mut head = self.worker.heads.take();
        push_status_line(&mut head, status);
        push_date(&mut head, self.worker.now());
        head.extend_from_slice(&field_lines);
        if status == 206 {
            push_field(&mut head, "Content-Range", content_range(&range, length).as_bytes());
        }
        let len = range.end - range.start;
        write_end(&mut head, Framing::Length(len), None, options);
        self.client.record.other(status, Outcome::Own);
        self.client.add_overhead(head.len());
        if options.is_head || len == 0 {
            self.client.write_all(&head, &[]).await?;
        } else {
            self.client.write_all_and_more(&head).await?;
            self.client.send_file(&found.file, range.start, len).await?;
        }
        self.worker.heads.give_back(head);
        Ok(options.keeps_alive)
    }

    /// Selects the bytes of a file with these fields (RFC 9110, section 13.2.2). Several ranges are
    /// answered with the whole file (section 14.2).
    fn select_static(&self, field_lines: &[u8], length: u64) -> Selected {
        let response = [b"HTTP/1.1 200 OK\r\n", field_lines, b"\r\n"].concat();
        let Ok(Some((response, _))) = head::response(&response) else { return Selected::Whole };
        let (request, own): (_, &Fields<'_>) = (&self.request.fields, &response.fields);
        if fails_precondition(request, own) {
            return Selected::Other;
        }
        if is_not_modified(request, own) {
            return Selected::NotModified;
        }
        let is_counted = |_: &&str| !self.options.is_head && range_counts(request, own);
        let Some(wanted) = request.one("range").filter(is_counted) else { return Selected::Whole };
        match range::wanted(wanted, length) {
            Wanted::Unsatisfiable => Selected::Unsatisfiable,
            Wanted::Parts(mut parts) if parts.len() == 1 => Selected::Part(parts.remove(0)),
            Wanted::Parts(_) | Wanted::Whole => Selected::Whole,
        }
    }
}

/// Returns the name of a file below a directory; `None` for a hidden one, or a path with NUL.
fn name_of(path: &str) -> Option<Vec<u8>> {
    let mut name = resolved(path)?;
    let is_hidden = |segment: &[u8]| segment.starts_with(b".") && segment != WELL_KNOWN;
    if name.split(|byte| *byte == b'/').any(is_hidden) {
        return None;
    }
    if name.ends_with(b"/") {
        name.extend_from_slice(INDEX);
    }
    Some(name.split_off(1))
}

/// Opens a file below a directory. The directory is opened anew, because deployments replace it.
/// Returns a path descriptor for anything but a regular file: to open a device or a pipe has
/// effects on it and on the programs that use it.
fn open_below(dir: &Path, name: &[u8]) -> Result<(OwnedFd, Stat), Errno> {
    let dir = open(dir, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let place = openat2(&dir, OsStr::from_bytes(name), flags, Mode::empty(), resolve)?;
    let stat = fstat(&place)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Ok((place, stat));
    }
    let path = format!("/proc/self/fd/{}", place.as_raw_fd());
    // Another program's lease must not block the worker.
    let file = open(path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())?;
    Ok((file, stat))
}

fn not_found() -> ExchangeError {
    ExchangeError::Refuse(404, "there is no such file".to_owned())
}

fn refused(error: Errno) -> ExchangeError {
    match error {
        Errno::NOENT
        | Errno::NOTDIR
        | Errno::LOOP
        | Errno::XDEV
        | Errno::NAMETOOLONG
        | Errno::INVAL
        | Errno::NXIO => not_found(),
        Errno::ACCESS | Errno::PERM => ExchangeError::Refuse(403, "the file may not be read".to_owned()),
        Errno::MFILE | Errno::NFILE | Errno::AGAIN => {
            ExchangeError::Refuse(503, "the file cannot be opened now".to_owned())
        }
        error => ExchangeError::Refuse(500, format!("the file cannot be opened: {error}")),
    }
}

/// Returns the lines of the fields of a file.
fn field_lines(found: &Static, length: u64, name: &[u8], now: u64) -> Vec<u8> {
    let Static { stat, coding, varies, .. } = found;
    let seconds = u64::try_from(stat.st_mtime).unwrap_or(0);
    let mut lines = Vec::new();
    push_field(&mut lines, "Content-Type", media_type(name).as_bytes());
    // A file that was changed in the present second may change again within it, and its tag would
    // not: weak (RFC 9110, section 8.8.1). File systems count nanoseconds, but in ticks.
    let weak = if seconds >= now { "W/" } else { "" };
    // Files of equal length and time differ in their coding.
    let end = coding.map(|coding| format!("-{}", coding.name())).unwrap_or_default();
    let tag = format!("{weak}\"{seconds:x}-{:x}-{length:x}{end}\"", stat.st_mtime_nsec);
    push_field(&mut lines, "ETag", tag.as_bytes());
    if let Some(coding) = coding {
        push_field(&mut lines, "Content-Encoding", coding.name().as_bytes());
    }
    if *varies {
        push_field(&mut lines, "Vary", b"Accept-Encoding");
    }
    let modified = UNIX_EPOCH + Duration::from_secs(seconds.min(now));
    push_field(&mut lines, "Last-Modified", httpdate::fmt_http_date(modified).as_bytes());
    push_field(&mut lines, "Accept-Ranges", b"bytes");
    lines
}

/// Returns the media type of a file by its name. An unknown one is bytes, and browsers must not
/// guess another.
fn media_type(name: &[u8]) -> &'static str {
    let end = name.rsplit(|byte| matches!(byte, b'.' | b'/')).next().unwrap_or_default();
    let known = MEDIA_TYPES.iter().find(|(own, _)| end.eq_ignore_ascii_case(own.as_bytes()));
    known.map_or("application/octet-stream", |(_, media_type)| media_type)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;
    use std::time::Duration;

    use lab::wait_until;

    use super::*;
    use crate::{Clock, Config, Proxy};

    /// Time limit of each wait.
    const PATIENCE: Duration = Duration::from_secs(20);

    #[test]
    fn open_file_counts_as_a_descriptor_until_its_end() {
        let dir = tempfile::tempdir().unwrap();
        fs::File::create(dir.path().join("a")).unwrap().set_len(64 << 20).unwrap();
        let site = format!("[[site]]\nroute = [{{ files = \"{}\" }}]\n", dir.path().display());
        let config = Config::from_toml(&format!("listen = [\"127.0.0.1:0\"]\n{site}")).unwrap();
        let proxy = Proxy::start(&config, Clock::system()).unwrap();
        let budget = proxy.shared.descriptors.clone();
        let ask = || {
            let mut client = TcpStream::connect(proxy.address()).unwrap();
            client.write_all(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
            let mut status = [0; 12];
            client.read_exact(&mut status).unwrap();
            (client, String::from_utf8_lossy(&status).into_owned())
        };
        // The client does not read the file.
        let (slow, status) = ask();
        assert_eq!((status.as_str(), budget.used()), ("HTTP/1.1 200", 2));
        drop(slow);
        assert!(wait_until(PATIENCE, || budget.used() == 0), "{}", budget.used());
        let all: Vec<_> = (0..63).rev().filter_map(|power| budget.take_for_pipe(1 << power)).collect();
        assert_eq!(ask().1, "HTTP/1.1 503");
        drop(all);
        assert_eq!(ask().1, "HTTP/1.1 200");
    }

    #[test]
    fn special_files_are_not_opened() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, Mode::RWXU).unwrap();
        let (file, stat) = open_below(dir.path(), b"pipe").unwrap();
        assert_eq!(FileType::from_raw_mode(stat.st_mode), FileType::Fifo);
        // A writer that does not wait finds no reader.
        let writer = open(&pipe, OFlags::WRONLY | OFlags::NONBLOCK, Mode::empty());
        assert_eq!(writer.map(drop), Err(Errno::NXIO));
        drop(file);
    }

    #[test]
    fn names_are_below_the_directory() {
        for (path, expected) in [
            ("/", Some("index.html")),
            ("/a.css?x=/b", Some("a.css")),
            ("/a/b/", Some("a/b/index.html")),
            ("/a%20b", Some("a b")),
            ("/../../a", Some("a")),
            ("/x/%2e%2e/..%2fa", Some("a")),
            ("//a//b", Some("a/b")),
            ("/.git/config", None),
            ("/a/%2egit", None),
            ("/.well-known/x", Some(".well-known/x")),
            ("/a%00.css", None),
        ] {
            let name = name_of(path).map(|name| String::from_utf8(name).unwrap());
            assert_eq!(name.as_deref(), expected, "{path}");
        }
    }

    #[test]
    fn media_types_are_sorted_and_found() {
        assert!(MEDIA_TYPES.is_sorted());
        assert_eq!(media_type(b"a/b.HTML"), "text/html; charset=utf-8");
        assert_eq!(media_type(b"a.css/b"), "application/octet-stream");
    }
}
