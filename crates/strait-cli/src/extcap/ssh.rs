//! Capture on another machine: the system's `ssh` runs `strait capture` there, and its pcapng
//! stream goes to Wireshark's FIFO without passing through this process.
//!
//! ```text
//!   Wireshark ◀─ FIFO ◀─ ssh ◀══ sshd ◀─ strait capture -w -
//!                        ▲ standard input, which stays open until the end ═▶ cat; kill
//! ```
//!
//! sshd does not signal a command at the end of its connection, and a capture without packets would
//! not notice. So a process beside the capture reads its standard input, and ends the capture at
//! the end of this input.
//!
//! The remote shell gets one constant script. All texts of the user are its positional parameters,
//! each in single quotes, so that the shell interprets none of them.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::Args as ClapArgs;
use strait_capture::Path;

use crate::Error;
use crate::toolbar::Toolbar;

/// Name of the interface in Wireshark.
pub(super) const INTERFACE: &str = "strait-ssh";
/// Interval at which the child and signals are checked.
const POLL: Duration = Duration::from_millis(50);
/// Time for the remote capture to end after its input has ended, before ssh is ended.
const END_MAX: Duration = Duration::from_secs(5);
/// Time for the last messages of ssh after its end.
const MESSAGES_MAX: Duration = Duration::from_secs(1);
/// Maximum bytes of standard error that are kept: its last ones.
const STDERR_BYTES_MAX: usize = 4096;
/// Maximum bytes of a text of the user.
const TEXT_BYTES_MAX: usize = 4096;
/// Exit code of ssh for its own failures (ssh(1)).
const SSH_FAILED: i32 = 255;
/// Exit code of a shell for a program that does not exist.
const NOT_FOUND: i32 = 127;

/// Options of ssh: no questions, no terminal, no forwarding of ports, agent or X11, no other
/// command, no connection that others share, and an end if the other side is gone.
const OPTIONS: [&str; 19] = [
    "-T",
    "-a",
    "-x",
    "-o",
    "ControlMaster=no",
    "-o",
    "RemoteCommand=none",
    "-o",
    "BatchMode=yes",
    "-o",
    "ClearAllForwardings=yes",
    "-o",
    "LogLevel=ERROR",
    "-o",
    "ConnectTimeout=15",
    "-o",
    "ServerAliveInterval=15",
    "-o",
    "ServerAliveCountMax=3",
];

/// Script of the remote shell; its parameters are the filter and the command. The filter excludes
/// the connection itself: each packet of it would cause another one. The shell stays as parent of
/// the capture, so that its process id is not of another process when it is signalled.
const SCRIPT: &str = r#"f=$1; shift
c=${SSH_CONNECTION-}
if [ -n "$c" ]; then
a=${c%% *}; c=${c#* }
o="not (tcp and host ${a%%\%*} and port ${c%% *})"
if [ -n "$f" ]; then f="($f) and $o"; else f=$o; fi
fi
exec 3<&0
"$@" "$f" </dev/null 3<&- &
p=$!
{ cat <&3; kill $p; } >/dev/null 2>&1 &
w=$!
wait $p
s=$?
kill $w
exit $s"#;

/// Options of the remote capture.
#[derive(Clone, Debug, Default, ClapArgs)]
// The group would have the name Args, like the group of the command.
#[group(skip)]
pub(super) struct Args {
    /// Host to capture on, for ssh(1)
    #[arg(long, value_name = "HOST")]
    remote_host: Option<String>,
    /// Port of its SSH server
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    remote_port: Option<u16>,
    /// User on the host
    #[arg(long, value_name = "USER")]
    remote_username: Option<String>,
    /// File of the private key
    #[arg(long, value_name = "FILE")]
    sshkey: Option<String>,
    /// Interface of the host [default: the one that its strait capture chooses]
    #[arg(long, value_name = "IF")]
    remote_interface: Option<String>,
    /// Filter on the host, in libpcap's language
    #[arg(long, value_name = "FILTER")]
    remote_filter: Option<String>,
    /// Program strait on the host, with words before it, as in: sudo -n /usr/bin/strait
    #[arg(long, value_name = "COMMAND", default_value = "strait")]
    remote_command: String,
}

/// Returns the options that Wireshark shows, from the number `first` on.
pub(super) fn options(first: u32) -> String {
    let arguments = [
        ("--remote-host", "Host", "{type=string}{required=true}{group=Server}"),
        ("--remote-port", "Port", "{type=unsigned}{range=1,65535}{group=Server}"),
        ("--remote-username", "User", "{type=string}{group=Server}"),
        ("--sshkey", "Private key", "{type=fileselect}{mustexist=true}{group=Server}"),
        ("--remote-interface", "Interface", "{type=string}{group=Capture}"),
        ("--remote-filter", "Filter", "{type=string}{group=Capture}"),
        ("--remote-command", "Program strait", "{type=string}{default=strait}{group=Capture}"),
    ];
    let line = |(number, (call, display, rest)): (u32, (&str, &str, &str))| {
        format!("arg {{number={number}}}{{call={call}}}{{display={display}}}{rest}\n")
    };
    (first..).zip(arguments).map(line).collect()
}

impl Args {
    /// Captures until a signal, the end of the remote capture, or that of ssh.
    ///
    /// # Errors
    /// ssh is missing or fails, or the remote command fails: the last line on its standard error.
    pub(super) fn capture(
        &self,
        path: Path,
        fifo: &str,
        filter: &str,
        mut toolbar: Option<Toolbar>,
    ) -> Result<(), Error> {
        let (mut command, host) = self.command(path, filter)?;
        // The reader has it open, so this does not wait.
        let output = OpenOptions::new().write(true).open(fifo);
        let output = output.map_err(|error| Error::Failed(format!("open {fifo}: {error}")))?;
        let terminated = strait_os::process::on_termination()?;
        let mut child = start(&mut command, output)?;
        // The command holds the FIFO, of which the end is that of the stream.
        drop(command);
        let messages = Messages::read(child.stderr.take())?;
        if let Some(toolbar) = &mut toolbar {
            toolbar.log(&format!("ssh {host}"));
        }
        let status = wait(&mut child, terminated, || {
            if let Some(toolbar) = &mut toolbar {
                toolbar.set(&format!("capture on {host} by ssh"));
            }
        });
        let status = status.map_err(|error| Error::Failed(format!("wait for ssh: {error}")))?;
        if terminated.load(Ordering::Relaxed) || status.success() {
            return Ok(());
        }
        Err(failure(&host, status, &messages.take()))
    }

    /// Returns the command of ssh, and the host.
    fn command(&self, path: Path, filter: &str) -> Result<(Command, String), Error> {
        let host = self.remote_host.as_deref().unwrap_or_default();
        let user = self.remote_username.as_deref().filter(|user| !user.is_empty());
        check_name("--remote-host", host)?;
        let mut command = Command::new("ssh");
        command.args(OPTIONS);
        if let Some(port) = self.remote_port {
            command.args(["-p", &port.to_string()]);
        }
        if let Some(user) = user {
            check_name("--remote-username", user)?;
            command.args(["-l", user]);
        }
        if let Some(key) = self.sshkey.as_deref().filter(|key| !key.is_empty()) {
            check_text("--sshkey", key)?;
            command.args(["-i", key]);
        }
        command.args(["--", host, &self.remote_line(path, filter)?]);
        Ok((command, host.to_owned()))
    }

    /// Returns the line for the remote shell.
    fn remote_line(&self, path: Path, filter: &str) -> Result<String, Error> {
        let remote_filter = self.remote_filter.as_deref().unwrap_or_default().trim();
        let filter = match (remote_filter, filter.trim()) {
            (one, "") | ("", one) => one.to_owned(),
            (one, other) => format!("({one}) and ({other})"),
        };
        let interface = self.remote_interface.as_deref().filter(|interface| !interface.is_empty());
        let texts = [&filter, &self.remote_command, interface.unwrap_or_default()];
        for (name, text) in ["--remote-filter", "--remote-command", "--remote-interface"].iter().zip(texts) {
            check_text(name, text)?;
        }
        let program: Vec<&str> = self.remote_command.split_ascii_whitespace().collect();
        if program.is_empty() {
            return Err(Error::Usage("--remote-command is empty: give the program, as in strait".into()));
        }
        let interface = interface.map(|interface| format!("--interface={interface}"));
        let capture = ["capture", "--no-notices", "--path", path.name(), "-U", "-w", "-"];
        let words = ["sh", "-c", SCRIPT, "strait-extcap", &filter].into_iter().chain(program).chain(capture);
        let words = words.chain(interface.as_deref()).chain(["--"]);
        Ok(words.map(quote).collect::<Vec<_>>().join(" "))
    }
}

/// Quotes a word for a shell (POSIX 2.2.2): in single quotes, only a single quote is special.
fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Refuses a name of a host or user that ssh could take for an option, or that is none.
fn check_name(option: &str, name: &str) -> Result<(), Error> {
    check_text(option, name)?;
    if name.is_empty() {
        return Err(Error::Usage(format!("{option} is missing: give it in the options of the interface")));
    }
    if name.starts_with('-') || name.contains(char::is_whitespace) {
        return Err(Error::Usage(format!("{option} {name}: it begins with - or has a blank")));
    }
    Ok(())
}

/// Refuses control characters, which shells treat differently, and texts that are too long.
fn check_text(option: &str, text: &str) -> Result<(), Error> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(Error::Usage(format!("{option}: give at most {TEXT_BYTES_MAX} bytes")));
    }
    if text.contains(char::is_control) {
        return Err(Error::Usage(format!("{option}: it has a control character")));
    }
    Ok(())
}

fn start(command: &mut Command, output: File) -> Result<Child, Error> {
    let command = strait_os::process::with_default_signals(command);
    command.stdin(Stdio::piped()).stdout(output).stderr(Stdio::piped());
    command.spawn().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            Error::Refused("ssh: no such program: install the client of OpenSSH".into())
        }
        _ => Error::Failed(format!("execute ssh: {error}")),
    })
}

/// Waits until ssh ends. After a signal its input ends, and so does the remote capture.
/// Calls `shown` again and again.
fn wait(child: &mut Child, terminated: &AtomicBool, mut shown: impl FnMut()) -> std::io::Result<ExitStatus> {
    let mut ended = None;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if terminated.load(Ordering::Relaxed) {
            drop(child.stdin.take());
            if ended.get_or_insert_with(Instant::now).elapsed() > END_MAX {
                child.kill()?;
                return child.wait();
            }
        }
        shown();
        strait_os::wait::sleep(POLL);
    }
}

/// Returns the failure of ssh or of the remote command in one line.
fn failure(host: &str, status: ExitStatus, text: &str) -> Error {
    let line = text.lines().map(str::trim).rfind(|line| !line.is_empty());
    let line = line.map_or_else(|| format!("it ended with {status}"), str::to_owned);
    let line = line.strip_prefix("ssh: ").or(line.strip_prefix("strait: ")).unwrap_or(&line);
    match status.code() {
        Some(SSH_FAILED) => Error::Failed(format!("ssh {host}: {line}")),
        Some(NOT_FOUND) => Error::Failed(format!(
            "capture on {host}: {line}; install strait there, or give its path with --remote-command"
        )),
        _ => Error::Failed(format!("capture on {host}: {line}")),
    }
}

/// Standard error of ssh, which a thread reads. Processes that ssh started can hold it open after
/// the end of ssh, so the thread is not joined.
#[derive(Default)]
struct Messages {
    /// Last bytes, at most [`STDERR_BYTES_MAX`].
    last: Arc<Mutex<Vec<u8>>>,
    /// Has no sender after the end of the thread.
    ended: Option<Receiver<()>>,
}

impl Messages {
    fn read(stderr: Option<ChildStderr>) -> Result<Self, Error> {
        let Some(stderr) = stderr else { return Ok(Self::default()) };
        let failed = |error| Error::Failed(format!("start the thread that reads messages of ssh: {error}"));
        let last = Arc::new(Mutex::new(Vec::new()));
        let (sender, ended) = sync_channel(0);
        let run = {
            let last = last.clone();
            move || {
                keep_last(stderr, &last);
                drop(sender);
            }
        };
        std::thread::Builder::new().name("messages".into()).spawn(run).map_err(failed)?;
        Ok(Self { last, ended: Some(ended) })
    }

    /// Waits for the end of the messages, at most [`MESSAGES_MAX`], and returns the last ones.
    fn take(self) -> String {
        if let Some(ended) = self.ended {
            // Either the thread has ended, or the time is over.
            let _ = ended.recv_timeout(MESSAGES_MAX);
        }
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&last).into_owned()
    }
}

/// Reads to the end, and keeps the last bytes.
fn keep_last(mut input: impl Read, last: &Mutex<Vec<u8>>) {
    let mut buffer = [0; 1024];
    while let Ok(len @ 1..) = input.read(&mut buffer) {
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        last.extend_from_slice(&buffer[..len]);
        let surplus = last.len().saturating_sub(STDERR_BYTES_MAX);
        last.drain(..surplus);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(host: &str) -> Args {
        Args { remote_host: Some(host.into()), remote_command: "strait".into(), ..Args::default() }
    }

    #[test]
    fn names_that_could_be_options_are_refused() {
        for host in ["", "-oProxyCommand=id", "a b", "a\nb", "\u{1b}x", &"x".repeat(TEXT_BYTES_MAX + 1)] {
            assert!(args(host).command(Path::Auto, "").is_err(), "{host}");
        }
        for user in ["-x", "a b"] {
            let args = Args { remote_username: Some(user.into()), ..args("host") };
            assert!(args.command(Path::Auto, "").is_err(), "{user}");
        }
        let (command, host) = args("host.example").command(Path::Auto, "tcp").unwrap();
        let words: Vec<_> = command.get_args().map(|word| word.to_str().unwrap()).collect();
        let at = words.iter().position(|word| *word == "--").unwrap();
        assert_eq!((words[at + 1], host.as_str(), words.len()), ("host.example", "host.example", at + 3));
    }

    #[test]
    fn texts_are_quoted_for_the_remote_shell() {
        assert_eq!(quote("a'b $(id) `id` \\"), r"'a'\''b $(id) `id` \'");
        let args = Args {
            remote_interface: Some("$(id)".into()),
            remote_filter: Some("port 80'; id; '".into()),
            remote_command: "sudo -n /opt/s;id".into(),
            ..args("host")
        };
        let line = args.remote_line(Path::Auto, "udp").unwrap();
        for words in [
            r"'(port 80'\''; id; '\'') and (udp)'",
            "'sudo' '-n' '/opt/s;id' 'capture'",
            "'--interface=$(id)' '--'",
        ] {
            assert!(line.contains(words), "{words}: {line}");
        }
        let empty = Args { remote_command: " ".into(), ..args };
        assert!(empty.remote_line(Path::Auto, "").is_err());
    }

    #[test]
    fn failure_is_one_line() {
        use std::os::unix::process::ExitStatusExt as _;
        let text = |code: i32, text: &str| failure("h", ExitStatus::from_raw(code << 8), text).to_string();
        assert_eq!(
            text(255, "note\nssh: connect to host h port 22: refused\r\n\n"),
            "ssh h: connect to host h port 22: refused"
        );
        assert_eq!(text(1, "strait: no such interface\n"), "capture on h: no such interface");
        assert!(text(127, "sh: 1: strait: not found").ends_with("--remote-command"));
        assert_eq!(text(1, ""), "capture on h: it ended with exit status: 1");
    }

    #[test]
    fn only_the_last_messages_are_kept() {
        let text: Vec<u8> = (0..20_000_u32).map(|at| at as u8).collect();
        let last = Mutex::default();
        keep_last(&text[..], &last);
        assert_eq!(last.into_inner().unwrap(), text[text.len() - STDERR_BYTES_MAX..]);
    }
}
