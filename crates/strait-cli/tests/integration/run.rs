//! `strait run`: what it tells the library, and what it refuses.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::{env, fs};

use lab::{Launch, program_or_skip};

use crate::rig::{LIMIT, STRAIT, failure};

/// `strait` beside a stand-in for the library, so that it finds one.
pub(crate) fn with_library(directory: &std::path::Path) -> std::path::PathBuf {
    let strait = directory.join("strait");
    fs::copy(STRAIT, &strait).unwrap();
    fs::write(directory.join("libstrait_pcap.so"), "").unwrap();
    strait
}

#[test]
fn the_program_gets_the_library_the_choices_and_its_arguments() {
    let directory = tempfile::tempdir().unwrap();
    let strait = with_library(directory.path());
    let show = "echo \"$LD_PRELOAD $LD_LIBRARY_PATH $STRAIT_PATH $STRAIT_WAIT $STRAIT_QUEUES $STRAIT_STRICT \
        $STRAIT_REPORT $1\"; exit 7";
    let options =
        ["run", "--path", "xdp-zc", "--wait", "busy", "--queues", "0,2", "--strict", "--report=told"];
    let launch = Launch::new(&strait).args(options).args(["--", "sh", "-c", show, "sh", "-x"]);
    let finished = launch.env("LD_LIBRARY_PATH", "elsewhere").run(LIMIT).unwrap();
    let library = directory.path().join("libstrait_pcap.so");
    let (preloaded, beside) = (library.display(), directory.path().join("libpcap"));
    let expected = format!("{preloaded} {}:elsewhere xdp-zc busy 0,2 1 told -x", beside.display());
    let said = finished.text();
    assert_eq!(said.split_whitespace().collect::<Vec<_>>().join(" "), expected, "{}", finished.stderr);
    assert_eq!(finished.status.code(), Some(7), "the program's own");
    for name in ["libpcap.so.0.8", "libpcap.so.1"] {
        assert_eq!(fs::canonicalize(beside.join(name)).unwrap(), fs::canonicalize(&library).unwrap());
    }
}

#[test]
fn what_cannot_be_run_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let strait = with_library(directory.path());
    let refused =
        |program: &str| failure(&Launch::new(&strait).args(["run", "--", program]).run(LIMIT).unwrap());
    let (code, line) = refused("no-such-program");
    assert_eq!((code, line.contains("no-such-program: no such program")), (127, true), "{line}");
    let (code, line) = refused("/etc/passwd");
    assert_eq!((code, line.contains("not an executable file")), (126, true), "{line}");
    let finished = Launch::new(&strait).args(["run", "--bogus", "true"]).run(LIMIT).unwrap();
    let (code, line) = failure(&finished);
    assert_eq!((code, line.contains("--bogus: no such option")), (2, true), "{line}");
    let finished = Launch::new(&strait).args(["run", "--report=/nodir/x", "--", "true"]).run(LIMIT).unwrap();
    let (code, line) = failure(&finished);
    assert_eq!((code, &*line), (1, "strait: --report=/nodir/x: No such file or directory (os error 2)"));
    let privileged = directory.path().join("privileged");
    fs::copy("/bin/true", &privileged).unwrap();
    fs::set_permissions(&privileged, fs::Permissions::from_mode(0o2755)).unwrap();
    let (code, line) = refused(privileged.to_str().unwrap());
    assert_eq!((code, line.contains("nothing can be preloaded")), (3, true), "{line}");
    let spaced = directory.path().join("a place");
    fs::create_dir(&spaced).unwrap();
    let finished = Launch::new(with_library(&spaced)).args(["run", "--", "true"]).run(LIMIT).unwrap();
    let (code, line) = failure(&finished);
    assert_eq!((code, line.contains("a space or a colon")), (3, true), "{line}");
}

/// LD_LIBRARY_PATH gets the directory, so each library in it could be loaded.
#[test]
fn a_directory_of_links_that_may_hold_another_library_is_refused() {
    let plants: [fn(&Path); 5] = [
        |links| fs::set_permissions(links, fs::Permissions::from_mode(0o777)).unwrap(),
        |links| fs::write(links.join("libc.so.6"), "").unwrap(),
        |links| fs::create_dir(links.join("glibc-hwcaps")).unwrap(),
        |links| {
            fs::remove_file(links.join("libpcap.so.0.8")).unwrap();
            fs::write(links.join("libpcap.so.0.8"), "").unwrap();
        },
        |links| {
            fs::remove_file(links.join("libpcap.so.1")).unwrap();
            symlink("/etc/passwd", links.join("libpcap.so.1")).unwrap();
        },
    ];
    for plant in plants {
        let directory = tempfile::tempdir().unwrap();
        let strait = with_library(directory.path());
        let launch = || Launch::new(&strait).args(["run", "--", "true"]).run(LIMIT).unwrap();
        let _ = launch().success();
        let links = directory.path().join("libpcap");
        plant(&links);
        let (code, line) = failure(&launch());
        assert_eq!((code, line.contains("is not used") && line.contains("/libpcap")), (3, true), "{line}");
    }
}

#[test]
fn a_static_program_is_told() {
    if !program_or_skip("cc") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let strait = with_library(directory.path());
    let (source, program) = (directory.path().join("empty.c"), directory.path().join("empty"));
    fs::write(&source, "int main(void) { return 0; }").unwrap();
    for kind in ["-static", "-static-pie", "-pie"] {
        let _ =
            Launch::new("cc").arg(kind).arg(&source).arg("-o").arg(&program).run(LIMIT).unwrap().success();
        let finished = Launch::new(&strait).args(["run", "--"]).arg(&program).run(LIMIT).unwrap();
        let is_told = finished.stderr.contains("statically linked");
        assert_eq!(is_told, kind != "-pie", "{kind}: {}", finished.stderr);
    }
}

/// As `cargo install` leaves it: the program alone in a directory, the library where Cargo built
/// both.
#[test]
fn a_program_that_was_installed_alone_finds_the_library_that_was_built_with_it() {
    let directory = tempfile::tempdir().unwrap();
    let strait = directory.path().join("strait");
    fs::copy(STRAIT, &strait).unwrap();
    let launch = Launch::new(&strait).args(["run", "--", "sh", "-c", "echo $LD_PRELOAD"]);
    let finished = launch.run(LIMIT).unwrap().success();
    assert!(finished.text().trim().ends_with("/libstrait_pcap.so"), "{}", finished.text());
    assert_eq!(finished.stderr, "", "the loader takes it");
    assert!(env::var_os("LD_PRELOAD").is_none(), "this test's own loader is as usual");
}

#[test]
fn a_library_that_is_named_and_not_there_is_told_with_the_command_that_builds_it() {
    let launch = Launch::new(STRAIT).args(["run", "--", "true"]).env("STRAIT_PCAP_LIBRARY", "/nosuch.so");
    let (code, line) = failure(&launch.run(LIMIT).unwrap());
    assert_eq!(code, 3, "{line}");
    assert!(line.contains("STRAIT_PCAP_LIBRARY=/nosuch.so: no such file"), "{line}");
    assert!(line.contains("cargo build --release -p strait-pcap"), "{line}");
}
