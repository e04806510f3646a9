//! `strait extcap` beside its local interfaces: captures on another machine by ssh, and the toolbar
//! of a capture.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use lab::{Launch, Process, Wire, program_or_skip, skip, wait_until};
use rustix::fs::{CWD, Mode, OFlags, mkfifoat};
use rustix::io::ioctl_fionread;
use rustix::process::{Pid, Signal, kill_process};

use crate::rig::{Capture, LIMIT, STRAIT, failure, numbered, send, strait};
use crate::tools::{self, tshark};

/// Program `ssh` that runs the line like sshd: by the user's shell, with the connection in the
/// environment.
const FAKE_SSH: &str = r#"#!/bin/sh
printf '%s\n' "$@" > "$ARGUMENTS"
while [ "$1" != -- ]; do shift; done
shift 2
export SSH_CONNECTION='192.0.2.9 55555 192.0.2.2 22'
exec sh -c "$*"
"#;
/// Exclusion of this connection.
const EXCLUSION: &str = "not (tcp and host 192.0.2.9 and port 55555)";
const SSHD: &str = "/usr/sbin/sshd";

/// Directory with a program `ssh` and the files of a test.
struct Rig {
    directory: tempfile::TempDir,
}

impl Rig {
    fn new(ssh: &str) -> Self {
        let rig = Self { directory: tempfile::tempdir().unwrap() };
        let program = rig.path("ssh");
        fs::write(&program, ssh).unwrap();
        fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
        rig
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn fifo(&self, name: &str) -> String {
        mkfifoat(CWD, self.path(name), Mode::from(0o600)).unwrap();
        self.text(name)
    }

    /// Returns the launch of a remote capture into `fifo`.
    fn launch<'a>(&self, wire: &'a Wire, fifo: &str, options: &[&str]) -> Launch<'a> {
        let path = format!("{}:{}", self.directory.path().display(), std::env::var("PATH").unwrap());
        let launch = strait(wire.right(), &["extcap", "--capture", "--extcap-interface", "strait-ssh"]);
        let launch = launch.env("PATH", path).env("ARGUMENTS", self.path("arguments"));
        launch.args(["--fifo", fifo]).args(options)
    }
}

/// Reader of a FIFO, with the bytes so far.
struct Reader {
    bytes: Arc<Mutex<Vec<u8>>>,
    thread: JoinHandle<()>,
}

impl Reader {
    fn start(fifo: &str) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let thread = std::thread::spawn({
            let (bytes, fifo) = (bytes.clone(), fifo.to_owned());
            move || {
                let mut input = File::open(fifo).unwrap();
                let mut buffer = [0; 4096];
                while let Ok(len @ 1..) = input.read(&mut buffer) {
                    bytes.lock().unwrap().extend_from_slice(&buffer[..len]);
                }
            }
        });
        Self { bytes, thread }
    }

    fn bytes(&self) -> Vec<u8> {
        self.bytes.lock().unwrap().clone()
    }

    /// Waits until all writers have closed the FIFO.
    fn finish(self) -> Vec<u8> {
        self.thread.join().unwrap();
        Arc::into_inner(self.bytes).unwrap().into_inner().unwrap()
    }
}

/// Sends frames until some of them have arrived in the FIFO, ends the capture as Wireshark does,
/// and returns the stream.
fn captured(wire: &Wire, reader: Reader, capture: Process) -> Vec<u8> {
    let has_frames = || {
        send(wire, &numbered(6));
        // More than the headers.
        reader.bytes().len() > 4096
    };
    assert!(wait_until(LIMIT, has_frames), "{}", capture.stderr());
    // The capture is idle from here on, so only the end of its input can end it.
    capture.signal(Signal::TERM);
    let finished = capture.wait(LIMIT).unwrap().success();
    assert_eq!(finished.stderr, "");
    // The remote capture has ended as well: its line in the list of packet sockets is gone.
    let sockets = || wire.right().run(|| fs::read_to_string("/proc/thread-self/net/packet").unwrap());
    assert!(wait_until(LIMIT, || sockets().lines().count() == 1), "{}", sockets());
    reader.finish()
}

#[test]
fn remote_capture_streams_and_ends_with_wireshark() {
    let Some(wire) = Wire::builder().or_skip().filter(|_| tools::present()) else { return };
    let rig = Rig::new(FAKE_SSH);
    let fifo = rig.fifo("fifo");
    let reader = Reader::start(&fifo);
    let options = ["--remote-host", "gateway", "--remote-port", "2222", "--remote-username", "eve"];
    let remote = ["--remote-interface", "right", "--remote-command", STRAIT, "--remote-filter", "udp"];
    let of_wireshark = ["--extcap-capture-filter", "greater 500", "--path", "recv"];
    let options = [&options[..], &remote, &of_wireshark].concat();
    let capture = rig.launch(&wire, &fifo, &options).spawn().unwrap();
    let file = rig.path("stream.pcapng");
    fs::write(&file, captured(&wire, reader, capture)).unwrap();

    let lines = tshark(&file, &[], &["frame.len", "udp.dstport"]);
    assert!(!lines.is_empty());
    for line in lines {
        assert!(line[0].parse::<u32>().unwrap() > 500 && !line[1].is_empty(), "{line:?}");
    }
    let filter = format!("((udp) and (greater 500)) and {EXCLUSION}");
    let text = fs::read(&file).unwrap();
    let has_filter = text.windows(filter.len()).any(|window| window == filter.as_bytes());
    assert!(has_filter);
    let arguments = fs::read_to_string(rig.path("arguments")).unwrap();
    for words in ["\nBatchMode=yes\n", "\n-p\n2222\n", "\n-l\neve\n", "\n--\ngateway\n"] {
        assert!(arguments.contains(words), "{words}: {arguments}");
    }
}

#[test]
fn texts_are_no_commands_on_the_remote_machine() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let rig = Rig::new(FAKE_SSH);
    let (fifo, marker) = (rig.fifo("fifo"), rig.text("marker"));
    for text in
        [format!("right'; touch {marker}; '"), format!("$(touch {marker})"), format!("`touch {marker}`")]
    {
        for option in ["--remote-interface", "--remote-filter"] {
            let reader = Reader::start(&fifo);
            let options = ["--remote-host", "gateway", "--remote-command", STRAIT, option, &text];
            let finished = rig.launch(&wire, &fifo, &options).run(LIMIT).unwrap();
            let (code, line) = failure(&finished);
            assert!(code == 1 && line.starts_with("strait: capture on gateway: "), "{line}");
            let _ = reader.finish();
            assert!(!Path::new(&marker).exists(), "{option} {text}");
        }
    }
}

#[test]
fn failures_of_ssh_are_one_line() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let refused =
        "#!/bin/sh\necho 'ssh: connect to host gateway port 22: Connection refused' >&2\nexit 255\n";
    let missing = "#!/bin/sh\necho 'sh: 1: exec: strait: not found' >&2\nexit 127\n";
    let failures = [
        (refused, "strait: ssh gateway: connect to host gateway port 22: Connection refused"),
        (missing, "install strait there, or give its path with --remote-command"),
    ];
    for (ssh, expected) in failures {
        let rig = Rig::new(ssh);
        let fifo = rig.fifo("fifo");
        let reader = Reader::start(&fifo);
        let finished = rig.launch(&wire, &fifo, &["--remote-host", "gateway"]).run(LIMIT).unwrap();
        let (code, line) = failure(&finished);
        assert!(code == 1 && line.contains(expected), "{code} {line}");
        assert_eq!(reader.finish(), b"");
    }
    let rig = Rig::new(refused);
    for (host, code) in [("-oProxyCommand=id", 2), ("", 2)] {
        let host = format!("--remote-host={host}");
        let finished = rig.launch(&wire, "/dev/null", &[&host]).run(LIMIT).unwrap();
        assert_eq!(failure(&finished).0, code, "{host}");
    }
    assert!(!rig.path("arguments").exists());
    let none = rig.launch(&wire, "/dev/null", &["--remote-host", "gateway"]).env("PATH", "/nonexistent");
    let (code, line) = failure(&none.run(LIMIT).unwrap());
    assert!(code == 3 && line.contains("ssh: no such program"), "{code} {line}");
}

/// A configuration of the user that gives the other machine more than this capture needs.
#[test]
fn ssh_forwards_nothing_and_runs_no_other_command() {
    let Some(wire) = Wire::builder().or_skip().filter(|_| program_or_skip("ssh")) else { return };
    // -G prints the options that would apply, here into the FIFO.
    let rig = Rig::new("#!/bin/sh\nexec /usr/bin/ssh -G -F \"${0%/*}/config\" \"$@\"\n");
    let config = "ForwardAgent yes\nForwardX11 yes\nControlMaster auto\nRemoteCommand id\n";
    fs::write(rig.path("config"), config).unwrap();
    let fifo = rig.fifo("fifo");
    let reader = Reader::start(&fifo);
    let _ = rig.launch(&wire, &fifo, &["--remote-host", "gateway"]).run(LIMIT).unwrap().success();
    let text = String::from_utf8(reader.finish()).unwrap();
    for line in ["forwardagent no\n", "forwardx11 no\n", "controlmaster false\n"] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(!text.contains("remotecommand id"), "{text}");
}

/// Processes that ssh started, as for a jump host, keep its standard error open.
#[test]
fn end_of_ssh_is_not_delayed_by_its_children() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let ssh = "#!/bin/sh\nsleep 600 </dev/null >/dev/null &\necho $! >\"${0%/*}/child\"\n\
        echo 'ssh: gone' >&2\n";
    for (end, is_signalled) in [("exit 255\n", false), ("exec cat >/dev/null\n", true)] {
        let rig = Rig::new(&format!("{ssh}{end}"));
        let fifo = rig.fifo("fifo");
        let reader = Reader::start(&fifo);
        let capture = rig.launch(&wire, &fifo, &["--remote-host", "gateway"]).spawn().unwrap();
        let child =
            || fs::read_to_string(rig.path("child")).ok()?.trim().parse().ok().and_then(Pid::from_raw);
        assert!(wait_until(LIMIT, || child().is_some()));
        if is_signalled {
            capture.signal(Signal::TERM);
        }
        let finished = capture.wait(LIMIT);
        kill_process(child().unwrap(), Signal::KILL).unwrap();
        let finished = finished.unwrap();
        if is_signalled {
            let _ = finished.success();
        } else {
            assert_eq!(failure(&finished), (1, "strait: ssh gateway: gone".into()));
        }
        let _ = reader.finish();
    }
}

/// sshd on the loopback of the namespace, with a key of the test.
#[test]
fn remote_capture_works_with_the_system_s_sshd() {
    let Some(wire) = Wire::builder().or_skip().filter(|_| program_or_skip("ssh")) else { return };
    if !Path::new(SSHD).exists() {
        return skip("no sshd: apt-get install openssh-server");
    }
    let rig = Rig::new("#!/bin/sh\nexec /usr/bin/ssh -F \"${0%/*}/config\" \"$@\"\n");
    wire.right().run(|| strait_os::netlink::Netlink::open().unwrap().set_up(1, true)).unwrap();
    for key in ["host", "key"] {
        let _ = Launch::new("ssh-keygen")
            .args(["-q", "-t", "ed25519", "-N", "", "-f", &rig.text(key)])
            .run(LIMIT)
            .unwrap()
            .success();
    }
    fs::copy(rig.path("key.pub"), rig.path("authorized")).unwrap();
    fs::write(
        rig.path("config"),
        "StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nIdentitiesOnly yes\n",
    )
    .unwrap();
    let server = format!(
        "HostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\nPermitRootLogin yes\nPidFile none\nListenAddress 127.0.0.1\nPort 22\n",
        rig.text("host"),
        rig.text("authorized")
    );
    fs::write(rig.path("sshd"), server).unwrap();
    // sshd needs /run/sshd, which its service makes. Here it is only in sshd's mount namespace.
    let script =
        format!("mount -t tmpfs tmpfs /run && mkdir -m 755 /run/sshd && exec {SSHD} -D -e -f \"$0\"");
    let unshare = wire.right().command("unshare").args(["--mount", "--propagation", "private"]);
    let sshd = unshare.args(["sh", "-c", &script, &rig.text("sshd")]).spawn().unwrap();
    sshd.wait_for_stderr("Server listening", LIMIT).unwrap();

    let fifo = rig.fifo("fifo");
    let reader = Reader::start(&fifo);
    let options = ["--remote-host", "127.0.0.1", "--sshkey", &rig.text("key"), "--remote-interface", "right"];
    let capture = rig.launch(&wire, &fifo, &[&options[..], &["--remote-command", STRAIT]].concat());
    let stream = captured(&wire, reader, capture.spawn().unwrap());
    let filter = b"not (tcp and host 127.0.0.1 and port ";
    assert!(stream.windows(filter.len()).any(|window| window == filter));

    let reader = Reader::start(&fifo);
    let key = rig.text("host");
    let wrong = [&options[..2], &["--sshkey", &key]].concat();
    let (code, line) = failure(&rig.launch(&wire, &fifo, &wrong).run(LIMIT).unwrap());
    assert!(
        code == 1 && line.starts_with("strait: ssh 127.0.0.1: ") && line.contains("ermission denied"),
        "{line}"
    );
    let _ = reader.finish();
}

/// Message of a toolbar with controls.
const INITIALIZED: &[u8] = b"T\0\0\x02\0\0";

/// Message of a toolbar: control, command, value.
type Message = (u8, u8, String);

/// Returns the complete messages in a stream.
fn messages(mut bytes: &[u8]) -> Vec<Message> {
    let mut messages = Vec::new();
    while let Some((&[sync, a, b, c], rest)) = bytes.split_first_chunk::<4>() {
        assert_eq!(sync, b'T');
        let Some((message, rest)) = rest.split_at_checked(u32::from_be_bytes([0, a, b, c]) as usize) else {
            break;
        };
        messages.push((message[0], message[1], String::from_utf8(message[2..].to_vec()).unwrap()));
        bytes = rest;
    }
    messages
}

#[test]
fn toolbar_shows_the_ledger_and_the_log() {
    const FRAMES: usize = 30;
    let Some(wire) = Wire::builder().or_skip() else { return };
    let rig = Rig::new(FAKE_SSH);
    let listed =
        strait(wire.right(), &["extcap", "--extcap-interfaces"]).run(LIMIT).unwrap().success().text();
    for control in ["control {number=0}{type=string}", "control {number=1}{type=button}{role=logger}"] {
        assert!(listed.contains(control), "{listed}");
    }
    let [fifo, input, output] = ["fifo", "in", "out"].map(|name| rig.fifo(name));
    let (packets, shown) = (Reader::start(&fifo), Reader::start(&output));
    let arguments = ["extcap", "--capture", "--extcap-interface", "strait:right", "--fifo", &fifo];
    let pipes = ["--extcap-control-in", &input, "--extcap-control-out", &output];
    let capture = Capture::watch(strait(wire.right(), &arguments).args(pipes));
    let mut toolbar = OpenOptions::new().write(true).open(&input).unwrap();
    // Before it is initialised, a toolbar has no controls. The capture reads each part before it
    // shows the ledger, so the ledger had a chance once the second part is read.
    send(&wire, &numbered(FRAMES as u64));
    for part in [&INITIALIZED[..2], &INITIALIZED[2..4]] {
        toolbar.write_all(part).unwrap();
        await_read(&toolbar);
    }
    assert!(shown.bytes().is_empty());
    toolbar.write_all(&INITIALIZED[4..]).unwrap();
    let ledger = format!("received {FRAMES}: delivered {FRAMES}, filtered 0, lost 0");
    let last = || messages(&shown.bytes()).into_iter().rfind(|(control, ..)| *control == 0);
    assert!(wait_until(LIMIT, || last() == Some((0, 1, ledger.clone()))), "{:?}", messages(&shown.bytes()));
    wire.left().set_up(false);
    let has_note = || {
        messages(&shown.bytes()).iter().any(|(control, _, text)| *control == 1 && text.contains("carrier"))
    };
    assert!(wait_until(LIMIT, has_note), "{:?}", messages(&shown.bytes()));
    let finished = capture.end(Signal::TERM).success();
    assert_eq!(finished.stderr, "");
    let all = messages(&shown.finish());
    assert_eq!(all[0], (0, 5, String::new()), "the line is not for input");
    let log: Vec<&Message> = all.iter().filter(|(control, ..)| *control == 1).collect();
    assert!(log[0].1 == 2 && log[0].2.starts_with("right: path ") && log[0].2.ends_with('\n'), "{log:?}");
    assert!(packets.finish().len() > FRAMES * 64);
}

/// Waits until the capture has read all bytes of the pipe.
fn await_read(pipe: &File) {
    assert!(wait_until(LIMIT, || ioctl_fionread(pipe).unwrap() == 0));
}

/// A toolbar that reads nothing must not delay the packets: neither one that has not opened its
/// pipe, nor one with a full pipe. Once it reads, it has the last ledger.
#[test]
fn toolbar_that_is_not_read_does_not_stop_the_capture() {
    const FRAMES: usize = 30;
    let Some(wire) = Wire::builder().or_skip() else { return };
    for is_full in [false, true] {
        let rig = Rig::new(FAKE_SSH);
        let [fifo, input, output] = ["fifo", "in", "out"].map(|name| rig.fifo(name));
        let packets = Reader::start(&fifo);
        let open = || {
            let flags = OFlags::NONBLOCK.bits() as i32;
            OpenOptions::new().read(true).write(true).custom_flags(flags).open(&output).unwrap()
        };
        let full = is_full.then(|| {
            let mut pipe = open();
            while pipe.write(&[b'x'; 4096]).is_ok() {}
            pipe
        });
        let arguments = ["extcap", "--capture", "--extcap-interface", "strait:right", "--fifo", &fifo];
        let pipes = ["--extcap-control-in", &input, "--extcap-control-out", &output];
        let capture = Capture::watch(strait(wire.right(), &arguments).args(pipes));
        let mut toolbar = OpenOptions::new().write(true).open(&input).unwrap();
        toolbar.write_all(INITIALIZED).unwrap();
        await_read(&toolbar);
        send(&wire, &numbered(FRAMES as u64));
        assert!(wait_until(LIMIT, || packets.bytes().len() > FRAMES * 64), "full: {is_full}");
        let mut pipe = full.unwrap_or_else(open);
        let ledger = format!("received {FRAMES}: delivered {FRAMES}, filtered 0, lost 0");
        let mut shown = Vec::new();
        let has_ledger = || {
            let _ = pipe.read_to_end(&mut shown);
            String::from_utf8_lossy(&shown).contains(&ledger)
        };
        assert!(wait_until(LIMIT, has_ledger), "full: {is_full}");
        let _ = capture.end(Signal::TERM).success();
        let _ = packets.finish();
    }
}

/// Other bytes than messages close the pipe of the toolbar, and the capture goes on.
#[test]
fn toolbar_with_other_bytes_does_not_stop_the_capture() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let rig = Rig::new(FAKE_SSH);
    let [fifo, input, output] = ["fifo", "in", "out"].map(|name| rig.fifo(name));
    let packets = Reader::start(&fifo);
    let arguments = ["extcap", "--capture", "--extcap-interface", "strait:right", "--fifo", &fifo];
    let pipes = ["--extcap-control-in", &input, "--extcap-control-out", &output];
    let capture = Capture::watch(strait(wire.right(), &arguments).args(pipes));
    let mut toolbar = OpenOptions::new().write(true).open(&input).unwrap();
    // No message at all, which closes the pipe of the toolbar.
    toolbar.write_all(b"nonsense").unwrap();
    assert!(wait_until(LIMIT, || toolbar.write_all(b"T").is_err()));
    send(&wire, &numbered(30));
    let _ = capture.end(Signal::TERM).success();
    assert!(packets.finish().len() > 30 * 64);
}
