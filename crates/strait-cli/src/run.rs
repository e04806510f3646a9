//! `strait run`: runs an unmodified libpcap program on Strait's engine.
//!
//! It preloads `libstrait_pcap.so`, and adds a directory with libpcap's names for programs that
//! load libpcap by dlopen(3). Then it executes the program in its own process, so that terminal and
//! exit code are the program's.

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
use strait_capture::{Queues, Wait, broker};
use strait_os::output;

use crate::Error;
use crate::external::is_executable;
use crate::parse::{path, wait};
use crate::{tap_broker, trust};

/// Options of `strait run`.
#[derive(ClapArgs)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Kernel path; a prefix of the program's device, as in xdp:eth0, has precedence
    #[arg(short, long, value_parser = path())]
    path: Option<strait_capture::Path>,
    /// How to wait for packets
    #[arg(long, value_parser = wait())]
    wait: Option<Wait>,
    /// With xdp and zerocopy: receive queues to read, all or as in 0,2,5-7 [default: all]
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

/// File name of the drop-in library.
const LIBRARY: &str = "libstrait_pcap.so";
/// Names under which programs load libpcap. They become links to the library.
const LIBPCAP_NAMES: [&str; 2] = ["libpcap.so.0.8", "libpcap.so.1"];
/// Directories in which packages install the library.
const INSTALL_DIRECTORIES: [&str; 2] = ["/usr/lib/strait", "/usr/local/lib/strait"];

/// Environment variable with the path of the library, for a library in another directory.
const LIBRARY_VARIABLE: &str = "STRAIT_PCAP_LIBRARY";
/// Directory in which Cargo built this program; none in an installed program.
const BUILD_DIRECTORY: Option<&str> = option_env!("STRAIT_BUILD_DIRECTORY");
const REMEDY: &str = if cfg!(target_feature = "crt-static") {
    "The archive of the static program has no libraries: install the Debian package libstrait-pcap, or name the \
     library of the other archive: STRAIT_PCAP_LIBRARY=DIRECTORY/libstrait_pcap.so"
} else {
    "Install the Debian package libstrait-pcap, or in Strait's source directory: cargo build --release -p strait-pcap && \
     sudo install -D target/release/libstrait_pcap.so /usr/local/lib/strait/libstrait_pcap.so"
};

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
    command.env("LD_PRELOAD", prepend(library.as_os_str(), "LD_PRELOAD"));
    command.env("LD_LIBRARY_PATH", prepend(link_directory(&library)?.as_os_str(), "LD_LIBRARY_PATH"));
    if let Some(queues) = &args.queues {
        let _: Queues =
            queues.parse().map_err(|error| Error::Usage(format!("--queues {queues}: {error}")))?;
    }
    let variable = |name: &str, value: String| (name.to_owned(), value);
    let variables = [
        args.path.map(|path| variable("STRAIT_PATH", path.name().to_owned())),
        args.wait.map(|wait| variable("STRAIT_WAIT", wait.name().to_owned())),
        args.queues.clone().map(|queues| variable("STRAIT_QUEUES", queues)),
        args.strict.then(|| variable("STRAIT_STRICT", "1".into())),
        args.report.clone().map(|report| variable("STRAIT_REPORT", report)),
    ];
    command.envs(variables.into_iter().flatten());
    // Its socket stays open until the program replaces this one.
    let broker = if uses_tap(args) { tap_broker::start()? } else { None };
    if let Some(broker) = &broker {
        command.env(broker::VARIABLE, broker.pass_on()?);
    }
    strait_os::stdio::close_again_on_exec();
    let error = command.exec();
    Err(Error::NotStarted(format!("run {}: {error}", path.display())))
}

/// Returns true if the program may capture on a tap.
fn uses_tap(args: &Args) -> bool {
    const TAP: &str = strait_capture::Path::Tap.name();
    let chosen = match args.path {
        Some(path) => path.name() == TAP,
        None => env::var_os("STRAIT_PATH").is_some_and(|path| path == TAP),
    };
    // The program's device may have the prefix.
    let names = |argument: &OsString| argument.to_string_lossy().contains(&format!("{TAP}:"));
    chosen || args.program.iter().any(names)
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

/// Finds the program as a shell does: a name without a slash in the PATH.
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

/// Refuses programs that are set-uid, set-gid or have file capabilities: the loader ignores
/// LD_PRELOAD for them.
fn refuse_privileged(path: &Path) -> Result<(), Error> {
    let user = rustix::process::geteuid();
    let changes_identity = fs::metadata(path).is_ok_and(|found| {
        let (sets_user, sets_group) = (found.mode() & 0o4000 != 0, found.mode() & 0o2000 != 0);
        (sets_user && found.uid() != user.as_raw()) || sets_group
    });
    let has_capabilities = rustix::fs::getxattr(path, c"security.capability", &mut [0_u8; 64]).is_ok();
    let gains_privileges = changes_identity || (has_capabilities && !user.is_root());
    if !gains_privileges {
        return Ok(());
    }
    let path = path.display();
    Err(Error::Refused(format!(
        "{path} is set-uid, set-gid or has file capabilities, so the loader ignores LD_PRELOAD: run a copy of it as root"
    )))
}

/// Refuses a statically linked program: it has no loader that could replace its libpcap.
fn refuse_static(path: &Path) -> Result<(), Error> {
    let head = File::open(path).and_then(|file| {
        let mut head = Vec::new();
        file.take(ELF_HEAD_BYTES).read_to_end(&mut head).map(|_| head)
    });
    match head {
        Ok(head) if has_loader(&head) == Some(false) => Err(Error::Refused(format!(
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
fn has_loader(head: &[u8]) -> Option<bool> {
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

/// Finds the library: the file named by [`LIBRARY_VARIABLE`], else a file beside this program, in
/// an installation directory, or in Cargo's build directory.
fn library() -> Result<PathBuf, Error> {
    if let Some(named) = env::var_os(LIBRARY_VARIABLE).filter(|named| !named.is_empty()) {
        return loadable(named_library(Path::new(&named))?);
    }
    let program = env::current_exe().ok();
    let own = program.as_deref().and_then(Path::parent);
    // `cargo build` puts it beside the program or, as a dependency, in `deps`; `make install` puts
    // it in `lib/strait`.
    let beside_program = ["", "deps", "../lib/strait"].into_iter().filter_map(|place| Some(own?.join(place)));
    let installed: Vec<PathBuf> = beside_program.chain(INSTALL_DIRECTORIES.map(PathBuf::from)).collect();
    let built: Vec<PathBuf> = BUILD_DIRECTORY
        .map(Path::new)
        .map_or_else(Vec::new, |built| vec![built.to_owned(), built.join("deps")]);
    // The path is made canonical, because `..` and links could change before the loader follows
    // them.
    let canonical = |place: &PathBuf| fs::canonicalize(place.join(LIBRARY)).ok();
    let untrusted = |library: &PathBuf| match &program {
        Some(program) => trust::untrusted_path(library, program).map(Path::to_owned),
        None => Some(library.clone()),
    };
    let mut refused = None;
    for library in installed.iter().chain(&built).filter_map(canonical).filter(|library| library.is_file()) {
        match untrusted(&library) {
            None => return loadable(library),
            Some(untrusted) => refused = refused.or(Some(not_trusted(&library, &untrusted))),
        }
    }
    Err(refused.unwrap_or_else(|| not_found(installed.iter().chain(&built))))
}

/// Returns the canonical path of the file named by [`LIBRARY_VARIABLE`]. The loader would look up a
/// relative path in the working directory of each child of the program.
fn named_library(named: &Path) -> Result<PathBuf, Error> {
    let found = fs::canonicalize(named).ok().filter(|found| found.is_file());
    found.ok_or_else(|| {
        Error::Refused(format!("{LIBRARY_VARIABLE}={}: no such file. {REMEDY}", named.display()))
    })
}

fn not_trusted(library: &Path, untrusted: &Path) -> Error {
    let (library, untrusted) = (library.display(), untrusted.display());
    Error::Refused(format!(
        "{library} is not loaded: another user owns {untrusted} or may write to it. Remove the write permission (chmod go-w {untrusted}), \
         or name the library: {LIBRARY_VARIABLE}={library}"
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

/// Returns the directory beside the library with links from libpcap's names to the library.
/// Packages contain this directory. Beside a built library it is created on first use.
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
    // If the user named the library, its owner is trusted instead of the program's.
    let trusted = if is_named() { Some(library.to_owned()) } else { env::current_exe().ok() };
    let untrusted = match trusted {
        Some(trusted) => trust::untrusted_link(&directory, &LIBPCAP_NAMES, library, &trusted),
        None => Some(directory.clone()),
    };
    untrusted.map_or_else(|| Ok(directory.clone()), |untrusted| Err(not_used(&directory, &untrusted)))
}

fn make_links(directory: &Path, library: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let name = library.file_name().unwrap_or(OsStr::new(LIBRARY));
    for link in LIBPCAP_NAMES {
        match symlink(Path::new("..").join(name), directory.join(link)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

fn not_used(directory: &Path, untrusted: &Path) -> Error {
    let is_dangling = untrusted.is_symlink() && !untrusted.exists();
    let (directory, untrusted) = (directory.display(), untrusted.display());
    let reason = if is_dangling {
        format!("the link {untrusted} leads to no file")
    } else {
        format!("the loader could load another library than Strait's through {untrusted}")
    };
    Error::Refused(format!(
        "{directory} is not used: {reason}. Remove {directory}; strait run creates it again"
    ))
}

/// Returns true if the user named the library by [`LIBRARY_VARIABLE`].
fn is_named() -> bool {
    env::var_os(LIBRARY_VARIABLE).is_some_and(|named| !named.is_empty())
}

/// Returns the list of `variable` with `value` in front.
fn prepend(value: &OsStr, variable: &str) -> OsString {
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
        let (library, untrusted) = (PathBuf::from("/a/b/libstrait_pcap.so"), Path::new("/a"));
        let message = not_trusted(&library, untrusted).to_string();
        let (first, rest) = message.split_once(": ").unwrap();
        assert_eq!(first, "/a/b/libstrait_pcap.so is not loaded");
        assert!(
            rest.starts_with("another user owns /a or may write to it. ") && rest.contains("chmod go-w /a"),
            "{message}"
        );
    }
}
