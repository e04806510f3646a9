//! Completion scripts, man pages and help, generated from the definition of the command line.

use std::fs;

use lab::Launch;

use crate::rig::{LIMIT, failure, run};

const COMMANDS: [&str; 5] = ["capture", "generate", "replay", "demo", "completions"];

#[test]
fn completion_scripts_of_all_shells_have_all_commands() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(&["completions", shell]).success().text();
        for word in COMMANDS.into_iter().chain(["snaplen", "ring-files"]) {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
}

#[test]
fn completion_script_for_bash_completes_a_command() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("strait.bash");
    fs::write(&file, run(&["completions", "bash"]).success().stdout).unwrap();
    let script =
        r#". "$0"; COMP_WORDS=(strait gen); COMP_CWORD=1; _strait strait gen strait; echo "${COMPREPLY[*]}""#;
    let finished = Launch::new("bash").args(["-c", script]).arg(&file).run(LIMIT).unwrap().success();
    assert_eq!((finished.text().trim(), finished.stderr.as_str()), ("generate", ""));
}

#[test]
fn every_command_has_a_man_page() {
    let directory = tempfile::tempdir().unwrap();
    let _ = run(&["man", directory.path().to_str().unwrap()]).success();
    let page = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap();
    let main = page("strait.1");
    assert!(main.contains(".SH NAME") && main.contains("\n.SH \"EXIT STATUS\"\n0 done; 1 failed"), "{main}");
    for command in COMMANDS {
        let text = page(&format!("strait-{command}.1"));
        assert!(text.contains(".SH NAME") && text.contains(".SH OPTIONS"), "{command}: {text}");
    }
    assert!(page("strait-capture.1").contains("snaplen"));
}

#[test]
fn directory_of_man_pages_is_created_without_its_parents() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("missing");
    let (code, line) = failure(&run(&["man", missing.join("man1").to_str().unwrap()]));
    assert!(code == 1 && line.contains("No such file or directory"), "{code} {line}");
    assert!(!missing.exists());
    let _ = run(&["man", missing.to_str().unwrap()]).success();
    assert!(missing.join("strait.1").exists());
}

#[test]
fn help_and_version_exit_with_0() {
    for arguments in [&["--help"][..], &["--version"], &["help", "capture"], &["capture", "--help"]] {
        let finished = run(arguments).success();
        assert!(finished.text().contains("strait") && finished.stderr.is_empty(), "{}", finished.text());
    }
    let finished = run(&[]);
    assert_eq!(finished.status.code(), Some(2));
    assert!(finished.stderr.contains("Usage: strait"), "{}", finished.stderr);
}
