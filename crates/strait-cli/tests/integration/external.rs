//! External commands: the search for their programs, and the error for a missing one.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use lab::{Finished, Launch};

use crate::rig::{LIMIT, STRAIT, failure, run};

const CHECK: [&str; 2] = ["proxy", "--check-config"];

/// Returns the program of `strait proxy`, which Cargo builds into the directory of `strait`.
pub(crate) fn proxy_program() -> PathBuf {
    let program = Path::new(STRAIT).with_file_name("strait-proxy");
    assert!(program.exists(), "{} is missing: cargo build --package strait-proxy", program.display());
    program
}

/// Runs a copy of `strait` in `directory`, with `path` as its PATH.
fn alone(directory: &Path, path: &str, arguments: &[&str]) -> Finished {
    let copy = directory.join("strait");
    if !copy.exists() {
        fs::copy(STRAIT, &copy).unwrap();
    }
    Launch::new(copy).args(arguments).env("PATH", path).run(LIMIT).unwrap()
}

#[test]
fn external_command_is_found_beside_strait() {
    let _ = proxy_program();
    assert!(run(&CHECK).success().text().starts_with("ok\n"));
    assert!(run(&["help", "cache"]).success().text().contains("Usage: strait cache"));
    // A link in the PATH leads to the directory of the program.
    let directory = tempfile::tempdir().unwrap();
    let link = directory.path().join("strait");
    std::os::unix::fs::symlink(STRAIT, &link).unwrap();
    let linked = Launch::new(link).args(CHECK).env("PATH", "").run(LIMIT).unwrap();
    assert!(linked.success().text().starts_with("ok\n"));
}

#[test]
fn external_command_is_found_on_the_path() {
    let directory = tempfile::tempdir().unwrap();
    let beside = proxy_program();
    let path = format!("/nonexistent:{}", beside.parent().unwrap().display());
    assert!(alone(directory.path(), &path, &CHECK).success().text().starts_with("ok\n"));
}

#[test]
fn missing_program_is_refused_with_the_install_command() {
    let directory = tempfile::tempdir().unwrap();
    // Neither a directory of that name nor a file that cannot be executed is the program.
    fs::create_dir(directory.path().join("strait-proxy")).unwrap();
    let other = tempfile::tempdir().unwrap();
    fs::write(other.path().join("strait-proxy"), "").unwrap();
    for arguments in [&CHECK[..], &["proxy"], &["cache", "ls"], &["help", "proxy"]] {
        let (code, line) = failure(&alone(directory.path(), &other.path().display().to_string(), arguments));
        assert_eq!(code, 3, "{arguments:?}: {line}");
        assert!(line.contains("needs the program strait-proxy, which is not installed"), "{line}");
        assert!(line.ends_with("cargo install --path crates/strait-proxy"), "{line}");
    }
}

/// Like the library of `strait run`: it would run with the rights of the caller.
#[test]
fn program_that_another_user_may_have_planted_is_not_executed() {
    let directory = tempfile::tempdir().unwrap();
    let (planted, mark) = (directory.path().join("strait-proxy"), directory.path().join("mark"));
    fs::write(&planted, format!("#!/bin/sh\n: >'{}'\n", mark.display())).unwrap();
    fs::set_permissions(&planted, fs::Permissions::from_mode(0o755)).unwrap();
    let pages = directory.path().join("pages").display().to_string();
    let commands: [&[&str]; 4] =
        [&["proxy", "--help"], &["cache", "ls"], &["completions", "bash"], &["man", &pages]];
    let is_run = |words: &[&str]| {
        let finished = alone(directory.path(), "", words);
        (fs::remove_file(&mark).is_ok(), finished)
    };
    for words in commands {
        assert!(is_run(words).0, "{words:?}");
    }
    let reason = format!("another user owns {} or may write to it", directory.path().display());
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    for words in commands {
        let (is_run, finished) = is_run(words);
        assert!(!is_run && finished.stderr.contains(&reason), "{words:?}: {}", finished.stderr);
        let is_needed = matches!(words[0], "proxy" | "cache");
        assert_eq!(finished.status.code(), Some(if is_needed { 3 } else { 0 }), "{words:?}");
    }
    // The search continues with the PATH.
    let path = proxy_program().parent().unwrap().display().to_string();
    let finished = alone(directory.path(), &path, &CHECK).success();
    assert!(finished.text().starts_with("ok\n") && finished.stderr.contains(&reason), "{}", finished.stderr);
}

#[test]
fn relative_directory_of_the_path_is_not_searched() {
    let directory = tempfile::tempdir().unwrap();
    let _ = alone(directory.path(), "", &CHECK);
    let folder = directory.path().join("bin");
    fs::create_dir(&folder).unwrap();
    std::os::unix::fs::symlink(proxy_program(), folder.join("strait-proxy")).unwrap();
    let script = "cd \"$0\" && PATH=:.:bin exec ./strait proxy --check-config";
    let finished = Launch::new("/bin/sh").args(["-c", script]).arg(directory.path()).run(LIMIT).unwrap();
    assert_eq!(failure(&finished).0, 3, "{}", finished.stderr);
}

#[test]
fn help_lists_external_commands() {
    let help = run(&["--help"]).success().text();
    for command in ["proxy", "cache"] {
        assert!(help.lines().any(|line| line.trim_start().starts_with(&format!("{command} "))), "{help}");
    }
    let (code, line) = failure(&run(&["proxi"]));
    assert!(code == 2 && line.ends_with("a similar subcommand exists: 'proxy'"), "{code} {line}");
}

#[test]
fn man_pages_of_external_programs_are_written_with_those_of_strait() {
    let _ = proxy_program();
    let directory = tempfile::tempdir().unwrap();
    let _ = run(&["man", directory.path().to_str().unwrap()]).success();
    let page = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap();
    assert!(page("strait-proxy.1").contains("print\\-default\\-config"), "{}", page("strait-proxy.1"));
    assert!(page("strait-proxy-cache-ls.1").contains("PATTERN"));
    assert_eq!(page("strait-cache.1"), ".so man1/strait-proxy-cache.1\n");
}

#[test]
fn completion_scripts_know_the_options_of_external_programs() {
    let _ = proxy_program();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(&["completions", shell]).success().text();
        for word in ["print-default-config", "verify"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("strait.bash");
    fs::write(&file, run(&["completions", "bash"]).success().stdout).unwrap();
    let script = r#". "$0"; COMP_WORDS=(strait "$1" "$2"); COMP_CWORD=2; _strait strait "$2" "$1"; echo "${COMPREPLY[*]}""#;
    for (words, completed) in [(["proxy", "--print"], "--print-default-config"), (["cache", "ve"], "verify")]
    {
        let launch = Launch::new("bash").args(["-c", script]).arg(&file).args(words);
        assert_eq!(launch.run(LIMIT).unwrap().success().text().trim(), completed);
    }
    let alone = alone(directory.path(), "", &["completions", "bash"]).success().text();
    assert!(alone.contains("proxy") && !alone.contains("print-default-config"));
}

#[test]
fn man_pages_of_a_missing_program_are_left_out_and_reported() {
    let directory = tempfile::tempdir().unwrap();
    let pages = directory.path().join("pages");
    let finished = alone(directory.path(), "", &["man", pages.to_str().unwrap()]).success();
    assert!(finished.stderr.starts_with("strait: no man pages of strait-proxy: "), "{}", finished.stderr);
    assert!(pages.join("strait.1").exists() && !pages.join("strait-cache.1").exists());
}
