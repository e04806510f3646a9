//! Findings for the proxy: if bodies can stay in the kernel, and if the cache directory is
//! suitable.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{
    Access, AtFlags, CWD, FileType, MemfdFlags, accessat, memfd_create, sendfile, stat, statfs,
};
use rustix::io::Errno;
use rustix::pipe::{SpliceFlags, pipe, splice, tee};
use rustix::process::{Resource, getrlimit};
use strait_os::process::has_seccomp_filter;
use strait_os::{Error, Kind, Result};
use strait_transfer::tls;

use super::args::{Area, Args};
use super::finding::{Finding, Recorder};

/// Pipe size that keeps a splice between two sockets busy.
const PIPE_BYTES: u64 = 1 << 20;
/// Recommended limit of open files. Each client, each origin connection and each object needs a
/// descriptor.
const FILES: u64 = 65_536;
/// File systems from which sendfile passes pages to a socket without a copy, by `f_type` of
/// statfs(2).
const ZERO_COPY: [(u64, &str); 4] =
    [(0xef53, "ext4"), (0x5846_5342, "xfs"), (0x9123_683e, "btrfs"), (0xf2f5_2010, "f2fs")];
/// Pseudo file systems (linux/magic.h).
const PSEUDO: [(u64, &str); 7] = [
    (0x9fa0, "proc"),
    (0x6265_6572, "sysfs"),
    (0x1cd1, "devpts"),
    (0x6462_6720, "debugfs"),
    (0x7472_6163, "tracefs"),
    (0xcafe_4a11, "bpf"),
    (0x6367_7270, "cgroup2"),
];
/// File systems that are unsuitable for a cache, with the reason.
const UNSUITABLE: [(u64, &str, &str); 4] = [
    (0x0102_1994, "tmpfs", "it is memory: a restart loses the cache"),
    (0x6969, "nfs", "each access crosses the network"),
    (0x794c_7630, "overlayfs", "it is a container's layer: mount a volume there"),
    (0x6573_5546, "fuse", "its pages pass through another program"),
];

pub(super) fn examine(args: &Args, findings: &mut Vec<Finding>) {
    let mut recorder = Recorder::new(Area::Proxy, findings);
    kernel_transfers(&mut recorder);
    pipes(&mut recorder);
    match tls::probe() {
        Ok(()) => recorder.ok("ktls", "the kernel encrypts: TLS can be served by sendfile"),
        Err(error) if error.kind() == Kind::Refused => {
            let message = format!("TLS is encrypted in user space: {}", error.cause());
            recorder.better("ktls", message, error.advice().unwrap_or_default());
        }
        Err(error) => recorder.unknown("ktls", &error),
    }
    cache(&args.cache, &mut recorder);
    files(&mut recorder);
}

/// Checks that sendfile(2), splice(2) and tee(2) work, with a few bytes.
fn kernel_transfers(recorder: &mut Recorder<'_>) {
    const SUBJECT: &str = "sendfile, splice, tee";
    match try_kernel_transfers() {
        Ok(()) => recorder.ok(SUBJECT, "they work: bodies stay in the kernel"),
        Err(error) if error.kind() == Kind::Refused => {
            let filtered = "a seccomp filter may forbid it: run the container with a profile that allows it";
            let fix = if has_seccomp_filter() { filtered } else { "" };
            recorder.broken(SUBJECT, error.failure(), fix);
        }
        Err(error) => recorder.unknown(SUBJECT, &error),
    }
}

fn try_kernel_transfers() -> Result<()> {
    const BYTES: usize = 16;
    let failed = |operation: &'static str| {
        move |errno: Errno| Error::os(operation, "bytes in the kernel", errno.raw_os_error())
    };
    let (file, [first, second]) = test_files().map_err(|errno| {
        // Not a refusal of sendfile, splice or tee: they were not tried.
        Error::os("make", "a file and pipes for a test", errno.raw_os_error()).with_kind(Kind::Failed)
    })?;
    rustix::io::write(&file, &[0; BYTES]).map_err(failed("write"))?;
    let mut start = 0;
    sendfile(&first.1, &file, Some(&mut start), BYTES).map_err(failed("sendfile"))?;
    tee(&first.0, &second.1, BYTES, SpliceFlags::NONBLOCK).map_err(failed("tee"))?;
    splice(&second.0, None, &first.1, None, BYTES, SpliceFlags::NONBLOCK).map_err(failed("splice")).map(drop)
}

/// Returns a file in memory and two pipes, each with its read end and its write end.
fn test_files() -> Result<(OwnedFd, [(OwnedFd, OwnedFd); 2]), Errno> {
    Ok((memfd_create("strait-doctor", MemfdFlags::CLOEXEC)?, [pipe()?, pipe()?]))
}

fn pipes(recorder: &mut Recorder<'_>) {
    let number =
        |file: &str| fs::read_to_string(format!("/proc/sys/fs/{file}")).ok()?.trim().parse::<u64>().ok();
    if let Some(bytes) = number("pipe-max-size") {
        let message = format!("a pipe holds up to {} KiB", bytes >> 10);
        recorder.judge(bytes >= PIPE_BYTES, "pipe size", message, "sysctl fs.pipe-max-size=1048576");
    }
    if let Some(pages) = number("pipe-user-pages-soft").filter(|_| !strait_os::process::is_root()) {
        let message = format!("the pipes of an unprivileged user hold up to {} MiB at full size", pages >> 8);
        recorder.judge(
            pages == 0 || pages >= 65_536,
            "pipe memory",
            message,
            "sysctl fs.pipe-user-pages-soft=0",
        );
    }
}

fn cache(directory: &Path, recorder: &mut Recorder<'_>) {
    const SUBJECT: &str = "cache directory";
    let shown = directory.display();
    let examined = stat(directory).and_then(|found| Ok((found, statfs(directory)?.f_type as u64)));
    let (found, kind) = match examined {
        Ok(examined) => examined,
        Err(Errno::NOENT) => {
            let message = format!("{shown} does not exist");
            return recorder.better(SUBJECT, message, format!("mkdir -p {shown}, or --cache DIR"));
        }
        Err(errno) => {
            let error = Error::os("examine", shown.to_string(), errno.raw_os_error());
            return recorder.unknown(SUBJECT, &error);
        }
    };
    if FileType::from_raw_mode(found.st_mode) != FileType::Directory {
        return recorder.broken(
            SUBJECT,
            format!("{shown} is not a directory"),
            "--cache DIR, with a directory",
        );
    }
    if let Some((_, name)) = PSEUDO.into_iter().find(|(known, _)| *known == kind) {
        let message = format!("{shown} is on {name}, which stores no files");
        return recorder.broken(SUBJECT, message, "--cache DIR on ext4 or xfs");
    }
    // EACCES checks the rights of the effective user, and detects a read-only mount.
    match accessat(CWD, directory, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS) {
        Ok(()) => {}
        Err(Errno::ROFS) => {
            let fix = "--cache DIR on a file system that is not mounted read-only";
            return recorder.broken(SUBJECT, format!("{shown} is mounted read-only"), fix);
        }
        Err(_) => {
            let user = rustix::process::geteuid().as_raw();
            let own = directory.join("strait");
            let own = own.display();
            let fix = match accessat(CWD, directory, Access::EXEC_OK, AtFlags::EACCESS) {
                Ok(()) => format!("as root: mkdir {own} && chown {user} {own}; then --cache {own}"),
                Err(_) => format!("--cache DIR, with a directory that user {user} can enter"),
            };
            return recorder.better(SUBJECT, format!("user {user} cannot write to {shown}"), fix);
        }
    }
    if let Some((_, name, why)) = UNSUITABLE.into_iter().find(|(known, ..)| *known == kind) {
        return recorder.better(
            SUBJECT,
            format!("{shown} is on {name}: {why}"),
            "--cache DIR on ext4 or xfs",
        );
    }
    match ZERO_COPY.into_iter().find(|(known, _)| *known == kind) {
        Some((_, name)) => {
            recorder.ok(SUBJECT, format!("{shown} is on {name}: sendfile passes its pages without a copy"));
        }
        None => recorder.ok(SUBJECT, format!("{shown} is on a file system of type {kind:#x}")),
    }
}

fn files(recorder: &mut Recorder<'_>) {
    let limit = getrlimit(Resource::Nofile);
    let message = match limit.current {
        Some(files) => format!("{files} files can be open"),
        None => "no limit of open files".into(),
    };
    let fix = "ulimit -n 65536 (systemd: LimitNOFILE=65536)";
    recorder.judge(limit.current.is_none_or(|files| files >= FILES), "open files", message, fix);
}

#[cfg(test)]
mod tests {
    use super::super::finding::State;
    use super::*;

    fn checked(directory: &Path) -> Finding {
        let mut findings = Vec::new();
        cache(directory, &mut Recorder::new(Area::Proxy, &mut findings));
        findings.remove(0)
    }

    #[test]
    fn cache_must_be_a_directory_on_a_file_system_that_stores_files() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "").unwrap();
        for (broken, why) in [(&*file, "not a directory"), (Path::new("/proc"), "stores no files")] {
            let finding = checked(broken);
            assert!(finding.state == State::Broken && finding.message.contains(why), "{finding:?}");
            assert!(finding.fix.unwrap().starts_with("--cache DIR"));
        }
        let none = checked(&directory.path().join("none"));
        assert!(none.state == State::Better && none.fix.unwrap().starts_with("mkdir -p "));
        assert_ne!(checked(directory.path()).state, State::Broken);
    }
}
