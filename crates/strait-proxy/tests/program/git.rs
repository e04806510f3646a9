//! git through the forward proxy: files (the dumb protocol), which a cache stores, and
//! git-http-backend, which it must not.

use std::path::Path;

use lab::{Finished, Launch, program_or_skip, skip};

use crate::rig::{LIMIT, Proxy, Setup};
use crate::servers::{Kind, Web, own_address};

/// git without the configuration of the user and the system.
fn git(at: &Path, arguments: &[&str]) -> Finished {
    let who = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.org", "-c", "protocol.version=2"];
    let launch = Launch::new("git").env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    let launch = launch.env("no_proxy", "").env("GIT_TERMINAL_PROMPT", "0").arg("-C").arg(at);
    launch.args(who).args(arguments).run(LIMIT).unwrap().success()
}

/// Makes a bare repository `repository.git` with some commits in `files`. Its objects are loose,
/// packed, or both.
fn make(files: &Path) {
    let work = tempfile::tempdir().unwrap();
    let at = work.path();
    let _ = git(at, &["init", "--quiet", "--initial-branch", "main"]);
    for commit in 0..4u64 {
        std::fs::write(at.join("noise"), crate::body::Body::new(commit, 300_000).bytes(0..300_000)).unwrap();
        let _ = git(at, &["add", "--all"]);
        let _ = git(at, &["commit", "--quiet", "--message", "a change"]);
        if commit == 1 {
            let _ = git(at, &["repack", "-a", "-d", "--quiet"]);
        }
    }
    let bare = files.join("repository.git");
    let _ = git(at, &["init", "--quiet", "--bare", bare.to_str().unwrap()]);
    let _ = Launch::new("cp").arg("-r").arg(at.join(".git/objects")).arg(&bare).run(LIMIT).unwrap().success();
    let _ = git(at, &["push", "--quiet", bare.to_str().unwrap(), "main:master"]);
    let _ = git(&bare, &["update-server-info"]);
}

/// Clones through the proxy, checks all objects, and returns the last commit.
fn clone(proxy: &Proxy, url: &str) -> String {
    let into = tempfile::tempdir().unwrap();
    let through = format!("http.proxy={}", proxy.url());
    let _ = git(into.path(), &["-c", &through, "clone", "--quiet", "--branch", "master", url, "clone"]);
    let clone = into.path().join("clone");
    let _ = git(&clone, &["fsck", "--full", "--strict"]);
    git(&clone, &["rev-parse", "HEAD"]).text()
}

#[test]
fn git_clones_over_the_dumb_protocol() {
    if !program_or_skip("git") {
        return;
    }
    let Some(web) = Web::start(Kind::Nginx, make) else { return };
    let proxy = Setup::forward().start();
    let url = web.url("repository.git");
    let (first, sent) = (clone(&proxy, &url), web.sent());
    assert_eq!(first, git(&web.files().join("repository.git"), &["rev-parse", "master"]).text());
    assert_eq!(clone(&proxy, &url), first);
    // git requests the list of branches with no-cache; the rest comes from the store.
    let again = &web.sent()[sent.len()..];
    assert!(
        sent.len() > 5 && again.iter().all(|line| line.contains("/info/refs") || line.contains("/HEAD")),
        "{again:?}"
    );
}

#[test]
fn git_clones_over_the_smart_protocol() {
    const BACKEND: &str = "/usr/lib/git-core/git-http-backend";
    if !program_or_skip("git") {
        return;
    }
    if !Path::new(BACKEND).is_file() {
        return skip(format!("there is no {BACKEND}"));
    }
    let folder = tempfile::tempdir().unwrap();
    make(folder.path());
    let more = format!(
        "SetEnv GIT_PROJECT_ROOT {}\nSetEnv GIT_HTTP_EXPORT_ALL 1\nSetEnv GIT_CONFIG_COUNT 1
SetEnv GIT_CONFIG_KEY_0 safe.directory\nSetEnv GIT_CONFIG_VALUE_0 *\nScriptAlias /git/ {BACKEND}/",
        folder.path().display()
    );
    let Some(web) = Web::start_at(own_address(), Kind::Apache, &more, |_| {}) else { return };
    let proxy = Setup::forward().start();
    let url = web.url("git/repository.git");
    let first = clone(&proxy, &url);
    let asked = web.sent().len();
    assert_eq!(clone(&proxy, &url), first);
    assert_eq!(web.sent().len(), 2 * asked, "it says no-cache");
}
