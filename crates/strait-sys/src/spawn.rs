//! Programs that get descriptors of this process at the numbers from 3 on, as a service manager
//! passes them (sd_listen_fds(3)).
//!
//! The proxy starts its successor so. `std::process::Command` cannot: the child must know its own
//! process id (`LISTEN_PID`), and the descriptor by which the standard library reports a failed
//! execve(2) could have one of the numbers.

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::ptr;

use rustix::io::retry_on_intr;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::error::{Error, Kind, Result, check};
use crate::inherited::{DESCRIPTORS_MAX, FIRST};

const OPERATION: &str = "start";
/// Variable with the process id of the child.
const PID: &[u8] = b"LISTEN_PID=";
/// Maximum digits of a process id.
const PID_DIGITS: usize = 10;
/// Variables that this module sets.
const OWN: [&str; 3] = ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"];

/// Starts `program` with these arguments, the first of which is its name, and with the environment
/// of this process. It gets `descriptors`, in this order, under their names. Returns its process
/// id, which the caller waits for. Names have no colon. The program begins with `ignored` signals
/// ignored, so that none ends it before it handles them.
///
/// # Errors
/// There are too many descriptors, or a system call fails; execve(2) for one.
pub fn with_descriptors(
    program: &Path,
    arguments: &[OsString],
    descriptors: &[(String, OwnedFd)],
    ignored: &[i32],
) -> Result<u32> {
    let subject = || program.display().to_string();
    let failed = |error: &io::Error| Error::from_io(OPERATION, subject(), error);
    let count = descriptors.len() as i32;
    if count > DESCRIPTORS_MAX {
        let what = format!("{count} descriptors to pass on; {DESCRIPTORS_MAX} are the most");
        return Err(Error::new(Kind::Failed, OPERATION, subject(), what));
    }
    let mut exec = Exec::new(program, arguments, descriptors).map_err(|error| failed(&error))?;
    let (reader, low) = pipe_with(PipeFlags::CLOEXEC).map_err(|errno| failed(&errno.into()))?;
    let writer = above(low.as_fd(), FIRST + count).map_err(|error| failed(&error))?;
    // Otherwise this process would wait for itself.
    drop(low);
    // SAFETY: fork(2) copies the memory and the descriptors. The child makes only calls that are
    // async-signal-safe (signal-safety(7)), because other threads may have held locks.
    let child = check(unsafe { libc::fork() }, OPERATION, subject())?;
    if child == 0 {
        exec.run(writer.as_fd(), ignored);
    }
    drop(writer);
    let mut errno = [0; 4];
    // The end of the pipe: execve(2) has closed the writer.
    match retry_on_intr(|| rustix::io::read(&reader, &mut errno)) {
        Ok(4) => {
            let child = child as u32;
            while crate::syscall::wait4_no_hang(child)?.is_none() {
                std::thread::yield_now();
            }
            Err(Error::os(OPERATION, subject(), i32::from_ne_bytes(errno)))
        }
        _ => Ok(child as u32),
    }
}

/// Everything that the child needs, made before fork(2).
struct Exec {
    program: CString,
    _strings: Vec<CString>,
    arguments: Vec<*const libc::c_char>,
    environment: Vec<*const libc::c_char>,
    /// `LISTEN_PID=` with room for the digits, which end with NUL.
    pid: Box<[u8]>,
    /// Above all numbers that they get in the child.
    descriptors: Vec<OwnedFd>,
}

impl Exec {
    fn new(program: &Path, arguments: &[OsString], descriptors: &[(String, OwnedFd)]) -> io::Result<Self> {
        let c_string = |text: &OsStr| CString::new(text.as_bytes()).map_err(io::Error::other);
        let names: Vec<_> = descriptors.iter().map(|(name, _)| name.as_str()).collect();
        let own =
            [format!("LISTEN_FDS={}", descriptors.len()), format!("LISTEN_FDNAMES={}", names.join(":"))];
        let variables = std::env::vars_os().filter(|(name, _)| OWN.iter().all(|own| name != own));
        let variables = variables.map(|(name, value)| [name, value].join(OsStr::new("=")));
        let variables: Vec<_> = variables.chain(own.map(OsString::from)).collect();
        let mut strings = Vec::with_capacity(arguments.len() + variables.len());
        for text in arguments.iter().chain(&variables) {
            strings.push(c_string(text)?);
        }
        let pid = [PID, &[0; PID_DIGITS + 1]].concat().into_boxed_slice();
        let pointers = |strings: &[CString]| strings.iter().map(|text| text.as_ptr()).collect::<Vec<_>>();
        let (of_arguments, of_variables) = strings.split_at(arguments.len());
        let (mut arguments, mut environment) = (pointers(of_arguments), pointers(of_variables));
        arguments.push(ptr::null());
        environment.extend([pid.as_ptr().cast(), ptr::null()]);
        let first_free = FIRST + descriptors.len() as i32;
        let descriptors = descriptors.iter().map(|(_, descriptor)| above(descriptor.as_fd(), first_free));
        Ok(Self {
            program: c_string(program.as_os_str())?,
            _strings: strings,
            arguments,
            environment,
            pid,
            descriptors: descriptors.collect::<io::Result<_>>()?,
        })
    }

    /// Executes the program in the child process, or reports the error number. Async-signal-safe:
    /// allocates and drops nothing.
    fn run(&mut self, report: BorrowedFd<'_>, ignored: &[i32]) -> ! {
        for signal in ignored {
            // SAFETY: signal(2) is async-signal-safe, and an ignored signal runs no code.
            unsafe { libc::signal(*signal, libc::SIG_IGN) };
        }
        // SAFETY: getpid(2) has no arguments.
        let own = unsafe { libc::getpid() };
        write_number(&mut self.pid[PID.len()..], own);
        for (number, descriptor) in (FIRST..).zip(&self.descriptors) {
            // SAFETY: dup2(2) takes numbers. The child uses no descriptor at `number`: those that
            // it uses are above all of these numbers.
            if unsafe { libc::dup2(descriptor.as_raw_fd(), number) } < 0 {
                give_up(report);
            }
        }
        // SAFETY: the program and all strings end with NUL, and both lists end with a null pointer.
        unsafe { libc::execve(self.program.as_ptr(), self.arguments.as_ptr(), self.environment.as_ptr()) };
        give_up(report)
    }
}

/// Writes the digits of a positive number to a buffer that ends with NUL.
fn write_number(into: &mut [u8], number: i32) {
    let mut divisor = 1;
    while number / divisor >= 10 {
        divisor *= 10;
    }
    for place in into.iter_mut().take(PID_DIGITS) {
        *place = b'0' + (number / divisor % 10) as u8;
        divisor /= 10;
        if divisor == 0 {
            return;
        }
    }
}

/// Reports the error number of the last call, and ends the child.
fn give_up(report: BorrowedFd<'_>) -> ! {
    let errno = io::Error::last_os_error().raw_os_error().unwrap_or_default().to_ne_bytes();
    // SAFETY: write(2) reads the bytes of the array, and _exit(2) takes a number.
    unsafe {
        libc::write(report.as_raw_fd(), errno.as_ptr().cast(), errno.len());
        libc::_exit(127)
    }
}

/// Duplicates a descriptor to a number that is at least `least`. It is closed on execve(2).
fn above(descriptor: BorrowedFd<'_>, least: i32) -> io::Result<OwnedFd> {
    // SAFETY: fcntl(2) duplicates an open descriptor.
    match unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_DUPFD_CLOEXEC, least) } {
        // SAFETY: the kernel has just made this descriptor, so it has no other owner.
        number @ 0.. => Ok(unsafe { OwnedFd::from_raw_fd(number) }),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read as _;

    use super::*;

    fn start(program: &str, arguments: &[&str], descriptors: &[(String, OwnedFd)]) -> Result<u32> {
        let arguments: Vec<_> = [program].iter().chain(arguments).map(OsString::from).collect();
        with_descriptors(Path::new(program), &arguments, descriptors, &[libc::SIGUSR2])
    }

    fn wait(child: u32) {
        while crate::syscall::wait4_no_hang(child).unwrap().is_none() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn program_gets_the_descriptors_in_order_with_their_names_and_its_own_number() {
        let (mut reader, writer) = io::pipe().unwrap();
        let (_unused, other) = io::pipe().unwrap();
        let script = "kill -USR2 $$; echo $((LISTEN_PID == $$)) $LISTEN_FDS $LISTEN_FDNAMES >&4";
        let descriptors = [("a".to_owned(), other.into()), ("b.c".to_owned(), writer.into())];
        let child = start("/bin/sh", &["-c", script], &descriptors).unwrap();
        drop(descriptors);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "1 2 a:b.c\n");
        wait(child);
    }

    #[test]
    fn program_that_cannot_be_executed_is_reported_with_its_cause() {
        let file: OwnedFd = File::open("/dev/null").unwrap().into();
        let descriptors = [("a".to_owned(), file)];
        let error = start("/nonexistent/program", &[], &descriptors).unwrap_err();
        assert_eq!(error.errno(), Some(libc::ENOENT), "{error}");
        let error = start("/dev/null", &[], &descriptors).unwrap_err();
        assert_eq!(error.errno(), Some(libc::EACCES), "{error}");
    }

    #[test]
    fn numbers_have_all_their_digits() {
        for number in [1, 9, 10, 99, 4_194_304, i32::MAX] {
            let mut buffer = [0; PID_DIGITS + 1];
            write_number(&mut buffer, number);
            let text = std::ffi::CStr::from_bytes_until_nul(&buffer).unwrap();
            assert_eq!(text.to_str().unwrap(), number.to_string());
        }
    }
}
