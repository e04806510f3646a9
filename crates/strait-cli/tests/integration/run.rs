//! `strait run`: the environment of the program, and refused programs and libraries.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::{env, fs};

use lab::{Launch, program_or_skip};

use crate::rig::{LIMIT, STRAIT, failure};

/// Copies `strait` to `directory`, beside an empty file with the name of the library.
pub(crate) fn with_library(directory: &std::path::Path) -> std::path::PathBuf {
    let strait = directory.join("strait");
    fs::copy(STRAIT, &strait).unwrap();
    fs::write(directory.join("libstrait_pcap.so"), "").unwrap();
    strait
}

#[test]
fn program_gets_the_library_the_options_and_its_arguments() {
    let directory = tempfile::tempdir().unwrap();
    let strait = with_library(directory.path());
    let show = "echo \"$LD_PRELOAD $LD_LIBRARY_PATH $STRAIT_PATH $STRAIT_WAIT $STRAIT_QUEUES $STRAIT_STRICT \
        $STRAIT_REPORT $1\"; exit 7";
    let options =
        ["run", "--path", "xdp-zc", "--wait", "busy", "--queues", "0,2", "--strict", "--report=file"];
    let launch = Launch::new(&strait).args(options).args(["--", "sh", "-c", show, "sh", "-x"]);
    let finished = launch.env("LD_LIBRARY_PATH", "elsewhere").run(LIMIT).unwrap();
    let library = directory.path().join("libstrait_pcap.so");
    let (preloaded, links) = (library.display(), directory.path().join("libpcap"));
    let expected = format!("{preloaded} {}:elsewhere xdp-zc busy 0,2 1 file -x", links.display());
    let text = finished.text();
    assert_eq!(text.split_whitespace().collect::<Vec<_>>().join(" "), expected, "{}", finished.stderr);
    assert_eq!(finished.status.code(), Some(7), "the program's exit code");
    for name in ["libpcap.so.0.8", "libpcap.so.1"] {
        assert_eq!(fs::canonicalize(links.join(name)).unwrap(), fs::canonicalize(&library).unwrap());
    }
}

#[test]
fn unusable_programs_are_refused_with_the_reason() {
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
    assert_eq!((code, line.contains("the loader ignores LD_PRELOAD")), (3, true), "{line}");
    let spaced = directory.path().join("a place");
    fs::create_dir(&spaced).unwrap();
    let finished = Launch::new(with_library(&spaced)).args(["run", "--", "true"]).run(LIMIT).unwrap();
    let (code, line) = failure(&finished);
    assert_eq!((code, line.contains("a space, colon or semicolon")), (3, true), "{line}");
}

/// The directory is in LD_LIBRARY_PATH, so that each library in it could be loaded.
#[test]
fn directory_of_links_with_another_library_is_refused() {
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
fn static_program_is_refused() {
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
        let is_refused = finished.stderr.contains("statically linked");
        assert_eq!(is_refused, kind != "-pie", "{kind}: {}", finished.stderr);
    }
}

/// Like after `cargo install`: only the program is in its directory, and the library is in Cargo's
/// target directory.
#[test]
fn program_installed_by_cargo_finds_its_library() {
    let directory = tempfile::tempdir().unwrap();
    let strait = directory.path().join("strait");
    fs::copy(STRAIT, &strait).unwrap();
    let launch = Launch::new(&strait).args(["run", "--", "sh", "-c", "echo $LD_PRELOAD"]);
    let finished = launch.run(LIMIT).unwrap().success();
    assert!(finished.text().trim().ends_with("/libstrait_pcap.so"), "{}", finished.text());
    assert_eq!(finished.stderr, "", "the loader loads it");
    assert!(env::var_os("LD_PRELOAD").is_none(), "the loader of this test preloads nothing");
}

#[test]
fn missing_named_library_is_reported_with_the_build_command() {
    let launch = Launch::new(STRAIT).args(["run", "--", "true"]).env("STRAIT_PCAP_LIBRARY", "/nosuch.so");
    let (code, line) = failure(&launch.run(LIMIT).unwrap());
    assert_eq!(code, 3, "{line}");
    assert!(line.contains("STRAIT_PCAP_LIBRARY=/nosuch.so: no such file"), "{line}");
    assert!(line.contains("cargo build --release -p strait-pcap"), "{line}");
}

/// The loader searches relative paths in the working directory of each child.
#[test]
fn relative_path_of_a_named_library_is_made_absolute() {
    let directory = tempfile::tempdir().unwrap();
    let _ = with_library(directory.path());
    let library = fs::canonicalize(directory.path().join("libstrait_pcap.so")).unwrap();
    let links = library.with_file_name("libpcap");
    let script = "cd \"$0\" && exec \"$1\" run -- sh -c 'echo \"$LD_PRELOAD $LD_LIBRARY_PATH\"'";
    for named in ["libstrait_pcap.so", "./libstrait_pcap.so"] {
        let launch = Launch::new("/bin/sh").args(["-c", script]).arg(directory.path()).arg(STRAIT);
        let launch = launch.env("STRAIT_PCAP_LIBRARY", named).env("LD_LIBRARY_PATH", "");
        let text = launch.run(LIMIT).unwrap().text();
        assert_eq!(text.trim_end(), format!("{} {}", library.display(), links.display()), "{named}");
    }
}
