//! apt and pip through the forward proxy, each with a repository, state and caches of its own. A
//! second machine installs from the store.

use std::fs;
use std::path::{Path, PathBuf};

use lab::{Launch, program_or_skip, skip};

use crate::rig::{LIMIT, Proxy, Setup};
use crate::servers::{Kind, Web};

/// Runs a shell script in a directory, and returns its output.
fn sh(at: &Path, script: &str) -> String {
    Launch::new("sh")
        .args(["-ec", &format!("cd '{}'\n{script}", at.display())])
        .run(LIMIT)
        .unwrap()
        .success()
        .text()
}

/// Makes a package of a megabyte, in a repository of one directory with an index.
const MAKE_DEBIAN: &str = r"
mkdir -p package/DEBIAN package/usr/share/strait-test
head -c 1000000 /dev/urandom >package/usr/share/strait-test/noise
printf '%s\n' 'Package: strait-test' 'Version: 1.0' 'Architecture: all' \
    'Maintainer: Nobody <nobody@example.org>' 'Description: a package for a test' >package/DEBIAN/control
dpkg-deb --root-owner-group --build package strait-test_1.0_all.deb >/dev/null
{
    cat package/DEBIAN/control
    echo 'Filename: ./strait-test_1.0_all.deb'
    echo Size: $(wc -c <strait-test_1.0_all.deb)
    echo SHA256: $(sha256sum strait-test_1.0_all.deb | cut -d' ' -f1)
} >Packages
{
    echo Suite: test
    LC_ALL=C date -u +'Date: %a, %d %b %Y %H:%M:%S UTC'
    echo SHA256:
    echo ' '$(sha256sum Packages | cut -d' ' -f1) $(wc -c <Packages) Packages
} >Release
rm -r package";

/// Machine that knows only this repository. Nothing of the system's apt is read or written, except
/// its programs.
struct Machine {
    folder: tempfile::TempDir,
}

impl Machine {
    fn new(web: &Web, proxy: &Proxy) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().display().to_string();
        sh(folder.path(), "mkdir -p none state/lists/partial cache/archives/partial log; touch status");
        let source = format!("deb [trusted=yes] http://{}/ ./\n", web.address);
        fs::write(folder.path().join("sources.list"), source).unwrap();
        let config = format!(
            r#"
Dir::State "{at}/state"; Dir::State::status "{at}/status"; Dir::Cache "{at}/cache"; Dir::Log "{at}/log";
Dir::Etc::main "/dev/null"; Dir::Etc::parts "{at}/none"; Dir::Etc::sourcelist "{at}/sources.list";
Dir::Etc::sourceparts "{at}/none"; Dir::Etc::preferences "/dev/null"; Dir::Etc::preferencesparts "{at}/none";
APT::Sandbox::User ""; Acquire::Languages "none"; Acquire::http::Proxy "{}"; Acquire::Retries "0";
"#,
            proxy.url()
        );
        fs::write(folder.path().join("apt.conf"), config).unwrap();
        Self { folder }
    }

    /// Returns the package that apt has downloaded after an update.
    fn download(&self) -> PathBuf {
        let apt = |command: &str| {
            let script = format!("APT_CONFIG=apt.conf apt-get --quiet=2 {command} 2>&1");
            let output = sh(self.folder.path(), &script);
            assert!(!output.contains("Err:") && !output.contains("W:"), "{output}");
        };
        apt("update");
        apt("--download-only --yes install strait-test");
        self.folder.path().join("cache/archives/strait-test_1.0_all.deb")
    }
}

#[test]
fn apt_updates_and_downloads() {
    if !["apt-get", "dpkg-deb"].into_iter().all(program_or_skip) {
        return;
    }
    let Some(web) = Web::start(Kind::Nginx, |files| drop(sh(files, MAKE_DEBIAN))) else { return };
    let proxy = Setup::forward().start();
    let package = fs::read(web.files().join("strait-test_1.0_all.deb")).unwrap();
    assert!(fs::read(Machine::new(&web, &proxy).download()).unwrap() == package);
    let sent = web.sent();
    assert!(fs::read(Machine::new(&web, &proxy).download()).unwrap() == package);
    // apt revalidates its indexes, and they are not sent again.
    assert_eq!(web.sent(), sent);
}

/// Makes a Python package with its index (PEP 503).
const MAKE_INDEX: &str = r#"
mkdir -p simple/strait-test strait_test strait_test-1.0.dist-info
head -c 500000 /dev/urandom >strait_test/noise
echo 'answer = 42' >strait_test/__init__.py
printf '%s\n' 'Metadata-Version: 2.1' 'Name: strait-test' 'Version: 1.0' >strait_test-1.0.dist-info/METADATA
printf '%s\n' 'Wheel-Version: 1.0' 'Generator: a test' 'Root-Is-Purelib: true' 'Tag: py3-none-any' \
    >strait_test-1.0.dist-info/WHEEL
printf '%s,,\n' strait_test/noise strait_test/__init__.py strait_test-1.0.dist-info/METADATA \
    strait_test-1.0.dist-info/WHEEL strait_test-1.0.dist-info/RECORD >strait_test-1.0.dist-info/RECORD
wheel=strait_test-1.0-py3-none-any.whl
python3 -m zipfile -c $wheel strait_test strait_test-1.0.dist-info
echo "<!DOCTYPE html><a href='../../$wheel'>$wheel</a>" >simple/strait-test/index.html
rm -r strait_test strait_test-1.0.dist-info"#;

/// Returns a working pip, if there is one.
fn pip() -> Option<Vec<String>> {
    let ours = std::env::var("HOME").map(|home| format!("{home}/.cache/strait/programs/python/bin/python"));
    let pythons = ours.into_iter().chain(["python3".to_owned()]);
    let works = |python: &String| {
        let asked = Launch::new(python).args(["-m", "pip", "--version"]).run(LIMIT);
        asked.is_ok_and(|finished| finished.status.success())
    };
    let found = pythons.into_iter().find(works).map(|python| vec![python, "-m".to_owned(), "pip".to_owned()]);
    if found.is_none() {
        skip("pip is not installed; `make setup` installs it");
    }
    found
}

#[test]
fn pip_installs() {
    let Some(pip) = program_or_skip("python3").then(pip).flatten() else { return };
    let Some(web) = Web::start(Kind::Nginx, |files| drop(sh(files, MAKE_INDEX))) else { return };
    let proxy = Setup::forward().start();
    let install = || {
        let target = tempfile::tempdir().unwrap();
        let host = web.address.ip().to_string();
        let launch = Launch::new(&pip[0]).args(&pip[1..]).args([
            "--isolated",
            "--no-cache-dir",
            "--proxy",
            &proxy.url(),
        ]);
        let launch =
            launch.args(["--disable-pip-version-check", "install", "--no-deps", "--trusted-host", &host]);
        let launch = launch.args(["--index-url", &web.url("simple/"), "--target"]).arg(target.path());
        let _ = launch.arg("strait-test").run(LIMIT).unwrap().success();
        fs::read(target.path().join("strait_test/noise")).unwrap()
    };
    let (first, sent) = (install(), web.sent());
    assert_eq!(first.len(), 500_000);
    assert!(install() == first);
    assert_eq!(web.sent(), sent);
}
