//! `strait run`: a libpcap program, unmodified, on Strait's engine.
//!
//! It preloads `libstrait_pcap.so`, puts it in libpcap's place for programs that open libpcap by themselves, and becomes
//! the program: same process, same terminal, same exit code.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args as ClapArgs;
use strait_capture::Queues;

use crate::Error;
use crate::capture::{PathArg, WaitArg};

/// Options of `strait run`.
#[derive(ClapArgs)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Kernel path; a prefix of the program's device, as in xdp:eth0, goes before it
    #[arg(short, long, value_enum)]
    path: Option<PathArg>,
    /// How to wait for packets
    #[arg(long, value_enum)]
    wait: Option<WaitArg>,
    /// With xdp receive queues to read: all, or as in 0,2,5-7 [default: all]
    #[arg(long)]
    queues: Option<String>,
    /// Fail where Strait cannot open a device, instead of leaving it to libpcap
    #[arg(long)]
    strict: bool,
    /// Print path, mode and ledger when the program closes a device, or append them to a file
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "1")]
    report: Option<String>,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, required = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

const EXAMPLES: &str = "Examples:
  strait run -- tcpdump -ni eth0 port 53
  strait run --path xdp --report -- tcpdump -ni eth0 -w dns.pcap port 53
  strait run -- dumpcap -i v3:eth0 -w out.pcapng";

/// The library's name.
const LIBRARY: &str = "libstrait_pcap.so";
/// Where a package puts it.
const PLACES: [&str; 2] = ["/usr/lib/strait", "/usr/local/lib/strait"];

/// Runs the command; returns only if that failed.
pub(crate) fn run(args: &Args) -> Result<(), Error> {
    let Some((program, rest)) = args.program.split_first() else {
        return Err(Error::Usage("no program to run".into()));
    };
    if program.as_encoded_bytes().starts_with(b"-") {
        let option = program.to_string_lossy();
        return Err(Error::Usage(format!(
            "{option}: no such option; options of the program come after its name"
        )));
    }
    let path = find(program)?;
    refuse_privileged(&path)?;
    refuse_static(&path)?;
    let library = library()?;
    let mut command = Command::new(&path);
    command.arg0(program).args(rest);
    command.env("LD_PRELOAD", first(library.as_os_str(), "LD_PRELOAD"));
    command.env("LD_LIBRARY_PATH", first(stand_in(&library)?.as_os_str(), "LD_LIBRARY_PATH"));
    if let Some(queues) = &args.queues {
        let _: Queues =
            queues.parse().map_err(|wrong| Error::Usage(format!("--queues {queues}: {wrong}")))?;
    }
    let named = |value: String, name: &str| (name.to_owned(), value);
    let chosen = [
        args.path.map(|path| named(path.name(), "STRAIT_PATH")),
        args.wait.map(|wait| named(wait.name(), "STRAIT_WAIT")),
        args.queues.clone().map(|queues| named(queues, "STRAIT_QUEUES")),
        args.strict.then(|| named("1".into(), "STRAIT_STRICT")),
        args.report.clone().map(|report| named(report, "STRAIT_REPORT")),
    ];
    command.envs(chosen.into_iter().flatten());
    let error = command.exec();
    Err(Error::NotStarted(format!("run {}: {error}", path.display())))
}

/// The program as the shell would find it.
fn find(program: &OsStr) -> Result<PathBuf, Error> {
    let executable = |path: &Path| {
        fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    let named = program.to_string_lossy();
    if program.as_encoded_bytes().contains(&b'/') {
        let path = PathBuf::from(program);
        return match path.exists() {
            _ if executable(&path) => Ok(path),
            true => Err(Error::NotStarted(format!("{named}: not an executable file"))),
            false => Err(Error::NoProgram(named.into())),
        };
    }
    let paths = env::var_os("PATH").unwrap_or_default();
    let found =
        env::split_paths(&paths).map(|directory| directory.join(program)).find(|path| executable(path));
    found.ok_or(Error::NoProgram(named.into()))
}

/// The loader preloads nothing into a program that runs with more privilege than its user.
fn refuse_privileged(path: &Path) -> Result<(), Error> {
    let me = rustix::process::geteuid();
    let changes_identity = fs::metadata(path).is_ok_and(|found| {
        let (sets_user, sets_group) = (found.mode() & 0o4000 != 0, found.mode() & 0o2000 != 0);
        (sets_user && found.uid() != me.as_raw()) || sets_group
    });
    let has_capabilities = rustix::fs::getxattr(path, c"security.capability", &mut [0_u8; 64]).is_ok();
    let gains = changes_identity || (has_capabilities && !me.is_root());
    if !gains {
        return Ok(());
    }
    let path = path.display();
    Err(Error::Refused(format!(
        "{path} is set-uid, set-gid or has file capabilities, so nothing can be preloaded: run a copy of it as root"
    )))
}

/// A program without a loader loads nothing.
fn refuse_static(path: &Path) -> Result<(), Error> {
    let head = File::open(path).and_then(|file| {
        let mut head = Vec::new();
        file.take(ELF_HEAD_BYTES).read_to_end(&mut head).map(|_| head)
    });
    match head {
        Ok(head) if names_a_loader(&head) == Some(false) => Err(Error::Refused(format!(
            "{} is statically linked, so nothing can be put in libpcap's place: build it with libpcap as a shared library",
            path.display()
        ))),
        // What cannot be read may still be run, and says so itself.
        _ => Ok(()),
    }
}

/// More than the header and the program headers of any program.
const ELF_HEAD_BYTES: u64 = 64 << 10;

/// Whether a 64-bit ELF program of this machine's byte order has a PT_INTERP (elf(5)); `None` for other files.
fn names_a_loader(head: &[u8]) -> Option<bool> {
    const PT_INTERP: u32 = 3;
    const HEADER: [u8; 5] = [0x7f, b'E', b'L', b'F', 2];
    if !head.starts_with(&HEADER) {
        return None;
    }
    let half = |at: usize| Some(u16::from_ne_bytes(*head.get(at..)?.first_chunk()?));
    let table = usize::try_from(u64::from_ne_bytes(*head.get(32..)?.first_chunk()?)).ok()?;
    let (entry_bytes, entries) = (usize::from(half(54)?), usize::from(half(56)?));
    let kinds = (0..entries).map(|i| {
        let at = table.checked_add(i.checked_mul(entry_bytes)?)?;
        Some(u32::from_ne_bytes(*head.get(at..)?.first_chunk()?))
    });
    let kinds: Option<Vec<u32>> = kinds.collect();
    Some(kinds?.contains(&PT_INTERP))
}

/// The library beside this program, or where a package puts it.
fn library() -> Result<PathBuf, Error> {
    let own = env::current_exe().ok().and_then(|program| program.parent().map(Path::to_owned));
    let places: Vec<PathBuf> = own.into_iter().chain(PLACES.map(PathBuf::from)).collect();
    let found = places.iter().map(|place| place.join(LIBRARY)).find(|path| path.is_file());
    // What LD_PRELOAD and LD_LIBRARY_PATH take for the end of a name (ld.so(8)).
    let ends = |byte: &u8| matches!(byte, b':' | b';' | b' ' | b'\t' | b'\n');
    if let Some(path) = found.as_ref().filter(|path| path.as_os_str().as_encoded_bytes().iter().any(ends)) {
        let path = path.display();
        return Err(Error::Refused(format!(
            "{path}: the loader takes no name with a space or a colon: move it"
        )));
    }
    found.ok_or_else(|| {
        let searched: Vec<_> = places.iter().map(|place| place.display().to_string()).collect();
        Error::Refused(format!(
            "{LIBRARY} is not in {}: build it with cargo build --release -p strait-pcap",
            searched.join(", ")
        ))
    })
}

/// The directory beside the library that has it under libpcap's names. A package brings it; after a build it is made.
fn stand_in(library: &Path) -> Result<PathBuf, Error> {
    let directory = library.with_file_name("libpcap");
    let make = || {
        fs::create_dir_all(&directory)?;
        for name in ["libpcap.so.0.8", "libpcap.so.1"] {
            match symlink(Path::new("..").join(LIBRARY), directory.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
        }
        Ok(())
    };
    make().map_err(|error| Error::Failed(format!("make links in {}: {error}", directory.display())))?;
    Ok(directory)
}

/// `value` first, then what the variable held anyhow.
fn first(value: &OsStr, variable: &str) -> OsString {
    let mut list = value.to_owned();
    if let Some(others) = env::var_os(variable).filter(|others| !others.is_empty()) {
        list.push(":");
        list.push(others);
    }
    list
}
