//! Errors: one clear line with the right exit code (1 failed, 2 usage, 3 refused), and never a
//! panic.

use std::fs;
use std::path::{Path, PathBuf};

use lab::{Finished, Launch, Wire, program_or_skip};

use crate::external::proxy_program;
use crate::rig::{Capture, LIMIT, PATHS, STRAIT, failure, run, strait};

/// The recording that the demo replays.
pub(crate) const RECORDING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/data/demo.pcap");

fn refused(wire: &Wire, arguments: &[&str]) -> (i32, String) {
    failure(&strait(wire.right(), arguments).run(LIMIT).unwrap())
}

#[test]
fn missing_interface_is_named() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let captures = PATHS.map(|path| vec!["capture", "-i", "nosuch0", "-p", path]);
    let generators =
        ["sendmmsg", "ring", "xdp", "live"].map(|path| vec!["generate", "-o", "nosuch0", "-p", path]);
    let replay = vec!["replay", RECORDING, "-o", "nosuch0"];
    for arguments in captures.into_iter().chain(generators).chain([replay]) {
        let (code, line) = refused(&wire, &arguments);
        assert_eq!(code, 2, "{line}");
        assert!(line.contains("nosuch0") && line.contains("no such interface"), "{line}");
    }
}

#[test]
fn missing_privilege_is_named() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let directory = tempfile::tempdir().unwrap();
    let strait = copy_for_all_users(directory.path());
    let recording = copy_file_for_all_users(directory.path(), RECORDING);
    let captures = PATHS.map(|path| vec!["capture", "-i", "right", "-p", path]);
    let generators =
        ["sendmmsg", "ring", "xdp", "live"].map(|path| vec!["generate", "-o", "right", "-p", path]);
    let replay = vec!["replay", recording.to_str().unwrap(), "-o", "right"];
    for arguments in captures.into_iter().chain(generators).chain([replay]) {
        let launch = wire.right().command("setpriv").args(AS_NOBODY).arg(&strait);
        let (code, line) = failure(&launch.args(&arguments).run(LIMIT).unwrap());
        assert_eq!(code, 3, "{arguments:?}: {line}");
        assert!(line.contains("root") && line.to_lowercase().contains("cap_"), "{line}");
    }
}

/// Each privilege of the tap is named if it alone is missing, with the path that does not need it.
/// CAP_PERFMON is left out: the verifier requires it only where it mitigates speculation.
#[test]
fn missing_privilege_of_the_tap_is_named() {
    let Some(wire) = Wire::builder().or_skip().filter(|_| program_or_skip("setpriv")) else { return };
    for missing in ["net_raw", "net_admin", "bpf"] {
        let name = format!("CAP_{}", missing.to_uppercase());
        let bounds = format!("-{missing},-sys_admin");
        let launch = wire.right().command("setpriv").args(["--bounding-set", &bounds, STRAIT, "capture"]);
        let (code, line) = failure(&launch.args(["-i", "right", "--path", "tap"]).run(LIMIT).unwrap());
        assert_eq!(code, 3, "{line}");
        assert!(line.contains(&format!("needs {name}: run as root")), "{line}");
        assert!(line.contains("--path v3 needs CAP_NET_RAW only"), "{line}");
    }
}

/// Arguments of setpriv(1) for an unprivileged user.
pub(crate) const AS_NOBODY: [&str; 5] =
    ["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--"];

/// Copies the program and the program of `strait proxy` so that every user can run them.
pub(crate) fn copy_for_all_users(directory: &Path) -> PathBuf {
    copy_file_for_all_users(directory, proxy_program());
    copy_file_for_all_users(directory, STRAIT)
}

fn copy_file_for_all_users(directory: &Path, file: impl AsRef<Path>) -> PathBuf {
    use std::os::unix::fs::PermissionsExt as _;
    let file = file.as_ref();
    let copy = directory.join(file.file_name().unwrap());
    fs::copy(file, &copy).unwrap();
    for path in [directory, &copy] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    copy
}

#[test]
fn invalid_filter_is_reported_with_the_message_of_libpcap() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    for path in PATHS {
        let (code, line) = refused(&wire, &["capture", "-i", "right", "-p", path, "tcp", "prot", "80"]);
        assert_eq!(code, 2, "{line}");
        assert!(line.contains("\"tcp prot 80\"") && line.contains("syntax error"), "{line}");
    }
}

#[test]
fn filter_without_libpcap_is_refused_with_the_package_to_install() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let directory = tempfile::tempdir().unwrap();
    let nothing = directory.path().join("nothing");
    fs::write(&nothing, "").unwrap();
    // Hides the library from processes of this mount namespace only.
    let script = r#"for library in $(ldconfig -p | sed -n 's/.*libpcap\.so.* => //p'); do mount --bind "$0" "$library"; done
        exec "$@""#;
    let hidden = |arguments: &[&str]| {
        let launch = wire.right().command("unshare").args(["--mount", "sh", "-c", script]).arg(&nothing);
        launch.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").arg(STRAIT).args(arguments).run(LIMIT).unwrap()
    };
    let (code, line) = failure(&hidden(&["capture", "-i", "right", "tcp"]));
    assert_eq!(code, 3, "{line}");
    assert!(line.contains("libpcap0.8"), "{line}");
    let _ = hidden(&["capture", "-i", "right", "--duration", "0.01"]).success();
}

#[test]
fn values_out_of_range_are_usage_errors() {
    // The loopback interface of the wire's namespace is up, so that only the value is wrong.
    let Some(wire) = Wire::builder().or_skip() else { return };
    for (arguments, words) in [
        (&["capture", "-i", "lo", "--ring-mib", "0"][..], "--ring-mib"),
        (&["capture", "-i", "lo", "--ring-mib", "2049"], "--ring-mib"),
        (&["capture", "-i", "lo", "--ring-mib", "-1"], "-1"),
        (&["capture", "-i", "lo", "--snaplen", "262145"], "snaplen 262145"),
        (&["capture", "-i", "lo", "--count", "0"], "--count"),
        (&["capture", "-i", "lo", "--duration", "0"], "--duration"),
        (&["capture", "-i", "lo", "--queues", "3-1"], "--queues"),
        (&["capture", "-i", "lo", "--queues", "0-9999"], "--queues"),
        (&["capture", "-i", "lo", "--cpus", "a"], "--cpus"),
        (&["capture", "-i", "lo", "--path", "fast"], "--path"),
        (&["capture", "-i", "lo", "-w", "x", "--rotate-mib", "0"], "--rotate-mib"),
        (&["capture", "-i", "lo", "-w", "x", "--ring-files", "2"], "needs rotation"),
        (&["capture", "-i", "lo", "--rotate-mib", "1"], "--rotate-mib needs an output: give -w FILE or --to"),
        (&["capture", "-i", "lo", "-G", "1"], "-G needs an output: give -w FILE or --to URL"),
        (&["capture", "-i", "lo", "-W", "1"], "-W needs an output: give -w FILE"),
        (&["capture", "-i", "lo", "--format", "pcap"], "--format needs an output: give -w FILE"),
        (
            &["capture", "-i", "lo", "--sensor", "ab"],
            "--sensor needs a target of tables: give --to, as in --to file:",
        ),
        (&["capture", "-r", RECORDING, "--tables", "dns"], "--tables needs a target of tables: give --to"),
        (&["capture", "-i", "lo", "-w", "-", "--rotate-mib", "1"], "rotation needs the name of a file"),
        (&["capture", "-i", "lo", "-r", "x"], "cannot be used with"),
        (&["generate", "-o", "lo", "--size", "63"], "frame size 63"),
        (&["generate", "-o", "lo", "--size", "9019"], "frame size 9019"),
        (&["generate", "-o", "lo", "--rate", "0"], "--rate"),
        (&["generate", "-o", "lo", "--vlan", "4095"], "VLAN identifier 4095"),
        (&["generate", "-o", "lo", "--flows", "0"], "number of flows 0"),
        (&["generate", "-o", "lo", "--path", "live", "--size", "imix"], "--path live"),
        (&["generate", "-o", "lo", "--path", "live", "--kind", "tcp4"], "--path live"),
        (&["replay", RECORDING, "-o", "lo", "--speed", "0"], "--speed"),
        (&["replay", RECORDING, "-o", "lo", "--loop", "0"], "--loop"),
        (&["replay", "-", "-o", "lo", "--loop", "2"], "--loop"),
        (&["replay", RECORDING, "-o", "lo", "--rate", "5", "--speed", "2"], "cannot be used with"),
        (&["fly"], "fly"),
    ] {
        assert_usage(&strait(wire.right(), arguments).run(LIMIT).unwrap(), words);
    }
}

/// Asserts exit code 2 and one line with the error.
fn assert_usage(finished: &Finished, words: &str) {
    let stderr = &finished.stderr;
    assert_eq!(finished.status.code(), Some(2), "{words}: {stderr}");
    assert!(!stderr.contains("panicked") && stderr.contains(words), "{words}: {stderr}");
    assert!(stderr.starts_with("strait: "), "{stderr}");
    assert_eq!(stderr.lines().filter(|line| !line.starts_with("try 'strait ")).count(), 1, "{stderr}");
}

#[test]
fn command_line_error_is_one_line_with_the_help_command() {
    for (arguments, line, help) in [
        (
            &["captur"][..],
            "unrecognized subcommand 'captur'; a similar subcommand exists: 'capture'",
            "strait",
        ),
        (&["send", "x"], "the following required arguments were not provided: <HOST:PORT>", "strait send"),
        (
            &["cache", "ls", "--most", "0"],
            "invalid value '0' for '--most <N>': give 1 to 1000000",
            "strait cache ls",
        ),
        (&["capture", "-d", "-5s"], "invalid value '-5s' for '-d': it cannot be below 0", "strait capture"),
        (&["capture", "-s", "-1"], "invalid value '-1' for '-s': it cannot be below 0", "strait capture"),
        (&["capture", "-nc", "-1"], "invalid value '-1' for '-nc': it cannot be below 0", "strait capture"),
        (
            &["capture", "--count=-1"],
            "invalid value '-1' for '--count <N>': give a number above 0, as in 5000 or 100k",
            "strait capture",
        ),
        (
            &["replay", "x", "--speed", "-1"],
            "invalid value '-1' for '--speed': it cannot be below 0",
            "strait replay",
        ),
        (
            &["send", "x", "y", "--timeout", "-5s"],
            "invalid value '-5s' for '--timeout': it cannot be below 0",
            "strait send",
        ),
        (
            &["proxy", "--workers", "x"],
            "invalid value 'x' for '--workers <N>': give a whole number, not below 0",
            "strait proxy",
        ),
        (
            &["capture", "-B", "99999999999999999999"],
            "invalid value '99999999999999999999' for '--buffer-size <KIB>': it is too large",
            "strait capture",
        ),
    ] {
        let finished = run(arguments);
        assert_eq!(finished.status.code(), Some(2), "{arguments:?}: {}", finished.stderr);
        assert_eq!(finished.stderr, format!("strait: {line}\ntry '{help} --help'\n"));
    }
}

#[test]
fn unwritable_help_is_a_failure() {
    for arguments in [&["--help"][..], &["--version"], &["capture", "-h"], &["help", "send"]] {
        let launch = Launch::new("sh").args(["-c", r#"exec "$0" "$@" > /dev/full"#, STRAIT]);
        let (code, line) = failure(&launch.args(arguments).run(LIMIT).unwrap());
        assert!(code == 1 && line.contains("write to standard output: No space left"), "{code} {line}");
    }
}

#[test]
fn missing_queue_is_reported_with_the_existing_queues() {
    let Some(wire) = Wire::builder().queues(3).or_skip() else { return };
    for list in ["3", "0-5"] {
        let (code, line) = refused(&wire, &["capture", "-i", "right", "-p", "xdp", "--queues", list]);
        assert_eq!(code, 2, "{line}");
        assert!(line.contains("right has receive queues 0 to 2"), "{line}");
    }
}

#[test]
fn missing_cpu_is_reported() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let finished = strait(wire.right(), &["capture", "-i", "right", "--cpus", "4095"]).run(LIMIT).unwrap();
    let (code, line) = failure(&finished);
    assert_eq!(code, 2, "{line}");
    assert!(line.contains("CPU 4095"), "{line}");
}

#[test]
fn zero_copy_is_refused_without_support_by_the_driver() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let (code, line) = refused(&wire, &["capture", "-i", "right", "-p", "xdp-zc"]);
    assert_eq!(code, 3, "{line}");
    assert!(line.contains("right"), "{line}");
}

#[test]
fn second_xdp_capture_is_refused_with_the_attached_program() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let first = Capture::start(wire.right(), &["-p", "xdp"]);
    let finished = strait(wire.right(), &["capture", "-i", "right", "-p", "xdp"]).run(LIMIT).unwrap();
    let (code, line) = failure(&finished);
    assert_eq!(code, 3, "{line}");
    assert!(line.contains("right") && line.contains("program"), "{line}");
    first.finish();
}

#[test]
fn unwritable_target_is_reported_before_the_capture() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().to_str().unwrap();
    let missing = directory.path().join("missing/file");
    let parent = format!("the directory {folder}/missing does not exist: mkdir -p {folder}/missing");
    for (target, words) in [
        (folder, "directory"),
        (missing.to_str().unwrap(), &parent),
        (&format!("{folder}/new/"), "give the name of a file"),
    ] {
        let (code, line) = refused(&wire, &["capture", "-i", "right", "-w", target]);
        assert_eq!(code, 1, "{line}");
        assert!(line.contains(words) && line.contains(target), "{line}");
    }
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "nothing is left behind");
}

/// docs/guide/privileges.md: the exit code for a file that cannot be opened is always 1.
#[test]
fn unopenable_file_is_a_failure_for_every_command() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().to_str().unwrap();
    let missing = directory.path().join("missing/file");
    let missing = missing.to_str().unwrap();
    for command in [
        &["capture", "-q", "-r", "FILE"][..],
        &["capture", "-r", RECORDING, "-F", "FILE"],
        &["capture", "-r", RECORDING, "-w", "FILE"],
        &["send", "FILE", "127.0.0.1:1"],
        &["receive", "-o", "FILE"],
        &["replay", "FILE", "-o", "lo"],
        &["proxy", "--config", "FILE"],
        &["proxy", "--check-config", "--config", "FILE"],
        &["cache", "stats", "--cache-dir", "FILE"],
        &["bench", "compare", "FILE", "FILE"],
        &["run", "--report=FILE", "--", "true"],
    ] {
        for file in [missing, folder] {
            let arguments: Vec<_> = command.iter().map(|word| word.replace("FILE", file)).collect();
            let finished = run(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
            assert_eq!(finished.status.code(), Some(1), "{arguments:?}: {}", finished.stderr);
            assert!(finished.stderr.contains(folder), "{arguments:?}: {}", finished.stderr);
        }
    }
}

#[test]
fn name_of_a_compressed_file_is_refused_with_the_command_to_compress() {
    let directory = tempfile::tempdir().unwrap();
    for (ending, program) in [("xz", "xz"), ("BZ2", "bzip2")] {
        let file = directory.path().join(format!("x.pcapng.{ending}"));
        let target = file.to_str().unwrap();
        let (code, line) = failure(&run(&["capture", "-r", RECORDING, "-w", target]));
        assert_eq!(code, 2, "{line}");
        assert!(line.contains(&format!("-w - | {program} > {target}")), "{line}");
    }
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "nothing is left behind");
}

#[test]
fn filter_whose_first_word_is_a_file_is_a_filter() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("host"), "").unwrap();
    let launch = Launch::new("sh").args(["-c", "cd \"$0\" && exec \"$@\""]).arg(directory.path());
    let capture = [STRAIT, "capture", "--json", "-r", RECORDING, "host", "192.0.2.1"];
    let _ = launch.args(capture).run(LIMIT).unwrap().success();
}

#[test]
fn two_captures_do_not_share_a_file() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("capture.pcapng");
    let target = file.to_str().unwrap();
    let first = Capture::start(wire.right(), &["-w", target]);
    let (code, line) = refused(&wire, &["capture", "-i", "right", "-w", target]);
    assert_eq!(code, 1, "{line}");
    assert!(line.contains("another capture is writing it"), "{line}");
    first.finish();
    assert!(file.exists());
}

#[test]
fn contradictory_options_are_refused_before_any_file_is_opened() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("in.pcap");
    fs::copy(RECORDING, &file).unwrap();
    let name = file.to_str().unwrap();
    let plain = directory.path().join("plain").to_str().unwrap().to_owned();
    fs::copy(RECORDING, &plain).unwrap();
    for (arguments, message) in [
        (&["-r", name, "-w", name][..], "name the same file"),
        (&["-r", name, "--path", "v3"], "cannot be used with"),
        (&["-r", name, "--direction", "in"], "cannot be used with"),
        (&["-r", name, "udp", "-c", "1"], "-c: options must precede the filter"),
        (&["-i", "lo", "--huge-pages"], "--huge-pages is for --path xdp"),
        (&["-i", "lo", "-p", "xdp", "--fanout", "cpu"], "--fanout works with packet sockets only"),
        (&["-i", "lo", "-p", "xdp-generic", "--fanout", "hash"], "--fanout works with packet sockets only"),
        (&["-i", "lo", "-p", "tap", "--fanout", "hash"], "--fanout works with packet sockets only"),
        (&["-i", "lo", "-p", "zerocopy", "--fanout", "hash"], "--fanout works with packet sockets only"),
        (&["-r", name, name], "is a file, not a filter: repeat -r, or quote the pattern"),
        (&["-r", name, "new.pcapng", "--to", "file:x"], "new.pcapng is a file, not a filter: repeat -r"),
        (&["-r", name, &plain, "-q"], "plain is a file, not a filter: repeat -r"),
        (&[name, "tcp"], "is a file, not a filter: use -r /"),
        (&["lo"], "lo is an interface: use -i lo"),
        (&["lo", "tcp", "port", "80"], "lo is an interface: use -i lo"),
        (&["-i", "lo", "-F", name, "udp"], "cannot be used with"),
        (&["-i", "lo", "-w", ""], "-w needs the name of a file"),
        (&["-r", name, "-w", ""], "-w needs the name of a file"),
        (&["-i", "lo", "--cpus", "4000", "-w", name], "pin a thread to CPU 4000"),
    ] {
        let finished = run(&[&["capture"], arguments].concat());
        assert_eq!(finished.status.code(), Some(2), "{arguments:?}: {}", finished.stderr);
        assert!(finished.stderr.contains(message), "{arguments:?}: {}", finished.stderr);
        assert!(finished.stdout.is_empty(), "{arguments:?}");
    }
    assert_eq!(fs::read(&file).unwrap(), fs::read(RECORDING).unwrap(), "the file is unchanged");
}
