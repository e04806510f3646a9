//! `strait run`: runs an unmodified libpcap program on Strait's engine.
//!
//! It preloads `libstrait_pcap.so`, and adds a directory with libpcap's names for programs that
//! load libpcap by dlopen(3). Then it executes the program in its own process, so that terminal and
//! exit code are the program's.

mod trust;

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args as ClapArgs;
use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;
use strait_capture::Queues;
use strait_sys::output;

use crate::Error;
use crate::capture::{PathArg, WaitArg};
use crate::external::is_executable;

/// Options of `strait run`.
#[derive(ClapArgs)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Kernel path; a prefix of the program's device, as in xdp:eth0, has precedence
    #[arg(short, long, value_enum)]
    path: Option<PathArg>,
    /// How to wait for packets
    #[arg(long, value_enum)]
    wait: Option<WaitArg>,
    /// With xdp: receive queues to read, all or as in 0,2,5-7 [default: all]
    #[arg(long)]
    queues: Option<String>,
    /// Fail if Strait cannot open a device, instead of falling back to libpcap
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

/// Name of the library.
const LIBRARY: &str = "libstrait_pcap.so";
/// Names of libpcap, as links to the library.
const NAMES: [&str; 2] = ["libpcap.so.0.8", "libpcap.so.1"];
/// Directories in which packages install the library.
const INSTALL_DIRECTORIES: [&str; 2] = ["/usr/lib/strait", "/usr/local/lib/strait"];

/// Environment variable with the path of the library, if it is in another directory.
const VARIABLE: &str = "STRAIT_PCAP_LIBRARY";
/// Directory in which Cargo built this program.
const BUILT_IN: &str = env!("STRAIT_BUILT_IN");
const REMEDY: &str = "In Strait's source directory: cargo build --release -p strait-pcap && \
    sudo install -D target/release/libstrait_pcap.so /usr/local/lib/strait/libstrait_pcap.so";

/// Runs the command. Returns only on an error.
pub(crate) fn run(args: &Args) -> Result<(), Error> {
    let Some((program, rest)) = args.program.split_first() else {
        return Err(Error::Usage("no program to run".into()));
    };
    if program.as_encoded_bytes().starts_with(b"-") {
        let option = program.to_string_lossy();
        return Err(Error::Usage(format!(
            "{option}: no such option; give the program's options after its name"
        )));
    }
    args.report.as_deref().map_or(Ok(()), check_report)?;
    let path = find(program)?;
    refuse_privileged(&path)?;
    refuse_static(&path)?;
    let library = library()?;
    let mut command = Command::new(&path);
    command.arg0(program).args(rest);
    command.env("LD_PRELOAD", first(library.as_os_str(), "LD_PRELOAD"));
    command.env("LD_LIBRARY_PATH", first(link_directory(&library)?.as_os_str(), "LD_LIBRARY_PATH"));
    if let Some(queues) = &args.queues {
        let _: Queues =
            queues.parse().map_err(|wrong| Error::Usage(format!("--queues {queues}: {wrong}")))?;
    }
    let named = |value: String, name: &str| (name.to_owned(), value);
    let chosen = [
        args.path.map(|path| named(path.0.name().to_owned(), "STRAIT_PATH")),
        args.wait.map(|wait| named(wait.name(), "STRAIT_WAIT")),
        args.queues.clone().map(|queues| named(queues, "STRAIT_QUEUES")),
        args.strict.then(|| named("1".into(), "STRAIT_STRICT")),
        args.report.clone().map(|report| named(report, "STRAIT_REPORT")),
    ];
    command.envs(chosen.into_iter().flatten());
    strait_sys::stdio::close_again_on_exec();
    let error = command.exec();
    Err(Error::NotStarted(format!("run {}: {error}", path.display())))
}

/// Fails if the file of `--report` is not writable, or if another user may have planted it. The
/// library would also report that, but with the name of its environment variable in place of the
/// option.
fn check_report(file: &str) -> Result<(), Error> {
    if matches!(file, "" | "0" | "1") {
        return Ok(());
    }
    let is_writable = || match accessat(CWD, file, Access::WRITE_OK, AtFlags::EACCESS) {
        // The library creates it.
        Err(Errno::NOENT) => Ok(()),
        checked => checked.map_err(io::Error::from),
    };
    // Not opened here: opening a named pipe waits for its reader.
    let checked = output::check(Path::new(file)).and_then(|()| is_writable());
    checked.map_err(|error| Error::Failed(format!("--report={file}: {error}")))
}

/// Finds the program like a shell.
fn find(program: &OsStr) -> Result<PathBuf, Error> {
    let named = program.to_string_lossy();
    if program.as_encoded_bytes().contains(&b'/') {
        let path = PathBuf::from(program);
        return match path.exists() {
            _ if is_executable(&path) => Ok(path),
            true => Err(Error::NotStarted(format!("{named}: not an executable file"))),
            false => Err(Error::NoProgram(named.into())),
        };
    }
    let paths = env::var_os("PATH").unwrap_or_default();
    let found =
        env::split_paths(&paths).map(|directory| directory.join(program)).find(|path| is_executable(path));
    found.ok_or(Error::NoProgram(named.into()))
}

/// Refuses set-uid, set-gid and capability programs, as the loader ignores LD_PRELOAD for them.
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
        "{path} is set-uid, set-gid or has file capabilities, so the loader ignores LD_PRELOAD: run a copy of it as root"
    )))
}

/// Refuses a statically linked program, as no loader can replace its libpcap.
fn refuse_static(path: &Path) -> Result<(), Error> {
    let head = File::open(path).and_then(|file| {
        let mut head = Vec::new();
        file.take(ELF_HEAD_BYTES).read_to_end(&mut head).map(|_| head)
    });
    match head {
        Ok(head) if names_a_loader(&head) == Some(false) => Err(Error::Refused(format!(
            "{} is statically linked, so its libpcap cannot be replaced: build it with libpcap as a shared library",
            path.display()
        ))),
        // An unreadable program may still run. If not, exec reports the error.
        _ => Ok(()),
    }
}

/// Limit on the size of ELF header and program headers.
const ELF_HEAD_BYTES: u64 = 64 << 10;

/// Returns true if a 64-bit ELF program of this machine's byte order has a PT_INTERP (elf(5)), and
/// `None` for other files.
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

/// Finds the library: the file named by [`VARIABLE`], else one beside this program, in an
/// installation directory, or in Cargo's.
fn library() -> Result<PathBuf, Error> {
    if let Some(named) = env::var_os(VARIABLE).filter(|named| !named.is_empty()) {
        let named = PathBuf::from(named);
        if !named.is_file() {
            return Err(Error::Refused(format!("{VARIABLE}={}: no such file. {REMEDY}", named.display())));
        }
        return loadable(named);
    }
    let program = env::current_exe().ok();
    let own = program.as_deref().and_then(Path::parent);
    // `cargo build` puts it beside the program or, as a dependency, in `deps`; `make install` puts
    // it in `lib/strait`.
    let near = ["", "deps", "../lib/strait"].into_iter().filter_map(|place| Some(own?.join(place)));
    let installed: Vec<PathBuf> = near.chain(INSTALL_DIRECTORIES.map(PathBuf::from)).collect();
    let built = [BUILT_IN.into(), Path::new(BUILT_IN).join("deps")];
    // Canonical, as `..` and links could change before the loader follows them.
    let canonical = |place: &PathBuf| fs::canonicalize(place.join(LIBRARY)).ok();
    let offender = |library: &PathBuf| match &program {
        Some(program) => trust::offender(library, program).map(Path::to_owned),
        None => Some(library.clone()),
    };
    let mut refused = None;
    for library in installed.iter().chain(&built).filter_map(canonical).filter(|library| library.is_file()) {
        match offender(&library) {
            None => return loadable(library),
            Some(offender) => refused = refused.or(Some(not_trusted(&library, &offender))),
        }
    }
    Err(refused.unwrap_or_else(|| not_found(installed.iter().chain(&built))))
}

fn not_trusted(library: &Path, offender: &Path) -> Error {
    let (library, offender) = (library.display(), offender.display());
    Error::Refused(format!(
        "{library} is not loaded: another user owns {offender} or may write to it. Remove the right (chmod go-w {offender}), \
         or name the library: {VARIABLE}={library}"
    ))
}

fn not_found<'a>(places: impl Iterator<Item = &'a PathBuf>) -> Error {
    let searched: Vec<_> = places.map(|place| place.display().to_string()).collect();
    Error::Refused(format!("{LIBRARY} is not in {}. {REMEDY}", searched.join(", ")))
}

/// Refuses a path with a character that ends a name in LD_PRELOAD or LD_LIBRARY_PATH (ld.so(8)).
fn loadable(library: PathBuf) -> Result<PathBuf, Error> {
    let ends = |byte: &u8| matches!(byte, b':' | b';' | b' ' | b'\t' | b'\n');
    if library.as_os_str().as_encoded_bytes().iter().any(ends) {
        return Err(Error::Refused(format!(
            "{}: the loader cannot load a library with a space, colon or semicolon in its path: move it",
            library.display()
        )));
    }
    Ok(library)
}

/// Returns the directory beside the library that links libpcap's names to it. Packages contain it.
/// After a build it is created here.
fn link_directory(library: &Path) -> Result<PathBuf, Error> {
    let directory = library.with_file_name("libpcap");
    make_links(&directory, library).map_err(|error| {
        let failure = format!("create links in {}: {error}", directory.display());
        match error.kind() {
            io::ErrorKind::PermissionDenied => {
                Error::Refused(format!("{failure}; run it once as the owner of that directory"))
            }
            _ => Error::Failed(failure),
        }
    })?;
    // The user named the library, so that its owner is trusted in place of the program's.
    let trusted = if is_named() { Some(library.to_owned()) } else { env::current_exe().ok() };
    let offender = match trusted {
        Some(trusted) => trust::offender_among_links(&directory, &NAMES, library, &trusted),
        None => Some(directory.clone()),
    };
    offender.map_or_else(|| Ok(directory.clone()), |offender| Err(not_used(&directory, &offender)))
}

fn make_links(directory: &Path, library: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let name = library.file_name().unwrap_or(OsStr::new(LIBRARY));
    for link in NAMES {
        match symlink(Path::new("..").join(name), directory.join(link)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

fn not_used(directory: &Path, offender: &Path) -> Error {
    let (directory, offender) = (directory.display(), offender.display());
    Error::Refused(format!(
        "{directory} is not used: the loader could load another library than Strait's by {offender}. Remove {directory}; \
         strait run creates it again"
    ))
}

/// Returns true if the user named the library by [`VARIABLE`].
fn is_named() -> bool {
    env::var_os(VARIABLE).is_some_and(|named| !named.is_empty())
}

/// Returns `value`, followed by the present value of `variable`.
fn first(value: &OsStr, variable: &str) -> OsString {
    let mut list = value.to_owned();
    if let Some(others) = env::var_os(variable).filter(|others| !others.is_empty()) {
        list.push(":");
        list.push(others);
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_library_is_reported_with_searched_directories_and_build_command() {
        let message = not_found([PathBuf::from("/bin"), PathBuf::from("/usr/lib/strait")].iter()).to_string();
        assert!(message.starts_with("libstrait_pcap.so is not in /bin, /usr/lib/strait. "), "{message}");
        assert!(message.contains("cargo build --release -p strait-pcap && sudo install -D "), "{message}");
    }

    #[test]
    fn untrusted_library_is_reported_with_reason_and_remedy() {
        let (library, offender) = (PathBuf::from("/a/b/libstrait_pcap.so"), Path::new("/a"));
        let message = not_trusted(&library, offender).to_string();
        let (first, rest) = message.split_once(": ").unwrap();
        assert_eq!(first, "/a/b/libstrait_pcap.so is not loaded");
        assert!(
            rest.starts_with("another user owns /a or may write to it. ") && rest.contains("chmod go-w /a"),
            "{message}"
        );
    }
}
