//! The command line of `strait-proxy`: help, mistakes, man pages, completions, closed streams.

use std::fs;

use lab::{Finished, Launch};

use crate::rig::{LIMIT, PROGRAM, run};

#[test]
fn help_and_version_succeed() {
    for arguments in [&["--help"][..], &["--version"], &["help", "cache"], &["cache", "ls", "--help"]] {
        let finished = run(arguments).success();
        assert!(finished.text().contains("strait-proxy") || finished.text().contains("stored"));
        assert!(finished.stderr.is_empty(), "{}", finished.stderr);
    }
    assert!(run(&["--help"]).text().contains("Usage: strait-proxy [OPTIONS]"));
}

#[test]
fn usage_error_is_one_line_and_names_the_help_command() {
    for (arguments, line, help) in [
        (
            &["cache", "ls", "--most", "0"][..],
            "invalid value '0' for '--most <N>': give 1 to 1000000",
            "strait-proxy cache ls",
        ),
        (
            &["--workers", "x"],
            "invalid value 'x' for '--workers <N>': give a whole number, not below 0",
            "strait-proxy",
        ),
        (&["cach"], "unrecognized subcommand 'cach'; a similar subcommand exists: 'cache'", "strait-proxy"),
    ] {
        let finished = run(arguments);
        assert_eq!(finished.status.code(), Some(2), "{arguments:?}: {}", finished.stderr);
        assert_eq!(finished.stderr, format!("strait-proxy: {line}\ntry '{help} --help'\n"));
    }
}

#[test]
fn messages_name_the_executed_command() {
    let script = "exec -a 'strait proxy' \"$0\" --nothing";
    let finished = Launch::new("bash").args(["-c", script, PROGRAM]).run(LIMIT).unwrap();
    assert!(finished.stderr.starts_with("strait: unexpected argument"), "{}", finished.stderr);
    assert!(finished.stderr.ends_with("try 'strait proxy --help'\n"), "{}", finished.stderr);
}

#[test]
fn every_command_gets_a_man_page() {
    let directory = tempfile::tempdir().unwrap();
    let _ = run(&["man", directory.path().to_str().unwrap()]).success();
    let page = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap();
    let main = page("strait-proxy.1");
    assert!(main.contains(".SH NAME") && main.contains(".SH EXAMPLES\n.nf\n"), "{main}");
    for command in ["ls", "stats", "get", "purge", "ban", "verify"] {
        let text = page(&format!("strait-proxy-cache-{command}.1"));
        assert!(text.contains(".SH NAME") && text.contains(".SH OPTIONS"), "{command}: {text}");
    }
}

#[test]
fn every_shell_gets_a_completion_script_that_knows_every_option() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(&["completions", shell]).success().text();
        for word in ["cache-dir", "print-default-config", "cache", "verify"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
}

fn redirected(redirection: &str, arguments: &[&str]) -> Finished {
    let script = format!(r#"exec "$0" "$@" {redirection}"#);
    Launch::new("sh").args(["-c", &script, PROGRAM]).args(arguments).run(LIMIT).unwrap()
}

#[test]
fn data_is_not_written_to_a_closed_standard_output() {
    for arguments in [
        &["--listen", "127.0.0.1:0", "--log", "-"][..],
        &["--print-default-config"],
        &["cache", "stats", "--admin", "127.0.0.1:1"],
        &["completions", "bash"],
    ] {
        let finished = redirected(">&-", arguments);
        assert_eq!(finished.status.code(), Some(1), "{arguments:?}: {}", finished.stderr);
        assert!(finished.stderr.starts_with("strait-proxy: standard output is closed"), "{arguments:?}");
        assert!(!finished.stderr.contains("listening"), "{arguments:?}: {}", finished.stderr);
    }
}
