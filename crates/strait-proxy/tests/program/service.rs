//! `strait-proxy` as a service, and its command `cache`: configuration, signals, environment, files
//! left behind.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::SystemTime;

use lab::{Launch, Process, program_or_skip, root_or_skip, wait_until};
use rustix::process::Signal;
use serde_json::Value;

use crate::rig::{AS_NOBODY, LIMIT, PROGRAM, everyones_copy, run, status};

/// Running proxy.
pub(crate) struct Proxy {
    pub(crate) process: Process,
    address: SocketAddr,
}

impl Proxy {
    pub(crate) fn start(options: &[&str]) -> Self {
        Self::launch(Launch::new(PROGRAM).args(["--json", "--workers", "1"]).args(options))
    }

    pub(crate) fn launch(launch: Launch<'static>) -> Self {
        let process = launch.spawn().unwrap();
        let address = process.address_after("listening on ", LIMIT);
        Self { process, address }
    }

    fn admin(&self) -> SocketAddr {
        self.process.address_after("admin page on http://", LIMIT)
    }

    /// Returns its metrics.
    pub(crate) fn metrics(&self) -> String {
        let mut stream = TcpStream::connect(self.admin()).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    pub(crate) fn get(&self, path: &str) -> String {
        get(self.address, path)
    }

    pub(crate) fn end(self) -> Value {
        self.process.signal(Signal::TERM);
        let finished = self.process.wait(LIMIT).unwrap().success();
        serde_json::from_str(finished.text().lines().next_back().unwrap()).unwrap()
    }
}

fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: www.example\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Starts an origin of cacheable responses. It ends with the process of the test.
pub(crate) fn origin() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for mut stream in listener.incoming().filter_map(Result::ok) {
            let (mut read, mut byte) = (Vec::new(), [0]);
            while !read.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|read| read > 0) {
                read.push(byte[0]);
            }
            let head = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nCache-Control: max-age=600\r\nConnection: close\r\n\r\n";
            let _ = stream.write_all(format!("{head}hello").as_bytes());
        }
    });
    url
}

pub(crate) fn write(dir: &Path, toml: &str) -> String {
    let path = dir.join("strait.toml");
    fs::write(&path, toml).unwrap();
    path.display().to_string()
}

#[test]
fn configuration_errors_are_reported_with_their_line() {
    let dir = tempfile::tempdir().unwrap();
    let default = run(&["--print-default-config"]).success().text();
    let path = write(dir.path(), &default);
    let checked = run(&["--check-config", "--config", &path]).success().text();
    assert_eq!(checked, "ok\nlisten 127.0.0.1:3128\n");
    let options = ["--listen", "127.0.0.1:1", "--admin", "127.0.0.1:2"];
    let checked = run(&[&["--check-config", "--config", &path], &options[..]].concat());
    assert_eq!(checked.success().text(), "ok\nlisten 127.0.0.1:1\nadmin 127.0.0.1:2\n");
    for (toml, expected) in [
        ("workers = 1\nsise = 3\n", "strait.toml: line 2: sise: unknown key"),
        ("\n\nlisten = []\n", "strait.toml: line 3: listen: "),
        ("listen = [\"0.0.0.0:3128\"]", "access.allow"),
    ] {
        let path = write(dir.path(), toml);
        let wrong = run(&["--check-config", "--config", &path]);
        assert_eq!((wrong.status.code(), wrong.stderr.lines().count()), (Some(2), 1), "{}", wrong.stderr);
        assert!(wrong.stderr.contains(expected), "{}", wrong.stderr);
    }
    assert_eq!(run(&["--check-config", "--config", "/nonexistent"]).status.code(), Some(1));
}

/// Phrases of libraries, which do not help the author of the file.
const FOREIGN: [&str; 8] = [
    "parse \"",
    "ByteSize",
    "unknown field",
    "unknown variant",
    "invalid type",
    "expected u",
    "TOML parse",
    "KeyMismatch",
];

/// File, and a part of the line that is reported for it.
const WRONG: [(&str, &str); 37] = [
    ("workers = 99999", "line 1: workers = 99999: expected a whole number from 0 to 256"),
    ("workers = -1", "from 0 to 256"),
    ("workers = \"two\"", "workers = \"two\": expected a whole number"),
    ("listen = [\"localhost\"]", "expected a list of addresses with ports"),
    ("listen = 3128", "expected a list of addresses with ports"),
    ("forwarded = \"no\"", "expected one of \"off\", \"append\", \"replace\""),
    ("origin = \"ftp://a\"", "http://HOST:PORT"),
    ("hosts = 3", "expected a list of host names"),
    ("cache = 3", "write [cache]"),
    ("[cache]\nsize = \"banana\"", "line 2: cache.size = \"banana\": expected a size"),
    ("[cache]\nsize = \"\"", "expected a size"),
    ("[cache]\nsize = -5", "expected a size"),
    ("[cache]\nabandoned = { past = 200 }", "with 0 to 100 per cent"),
    ("[cache]\nabandoned = \"never\"", "with 0 to 100 per cent"),
    (
        "[cache]\nmemory = \"1MiB\"\nmemory_object = \"2MiB\"",
        "line 3: cache.memory_object = \"2MiB\": larger than cache.memory",
    ),
    ("[cache]\nmemory_object = \"1GiB\"\nmemory = \"2GiB\"", "the maximum is 16MiB"),
    (
        "[cache]\ndir = \"/proc/version/x\"",
        "line 2: cache.dir = \"/proc/version/x\": /proc/version is not a directory",
    ),
    ("[cache]\ndir = \"/tmp\"\nsize = \"1MiB\"", "the minimum is "),
    (
        "[log]\naccess = \"/nonexistent/log\"",
        "line 2: log.access = \"/nonexistent/log\": /nonexistent is not a directory",
    ),
    ("[log]\naccess = \"/tmp\"", "this is a directory"),
    ("listen = [\"127.0.0.1:1\"]\nadmin.listen = \"127.0.0.1:1\"", "listen: 127.0.0.1:1 occurs twice"),
    ("[log]\nformat = \"clf\"", "expected one of \"common\""),
    ("[access]\nallow = [\"10.0.0.0/99\"]", "access.allow"),
    ("[access]\nallow = \"10.0.0.0/8\"", "expected a list of networks"),
    ("[access]\nconnect_ports = [70000]", "ports from 1 to 65535"),
    ("[timeouts]\nidle = 99999999", "whole seconds from 0 to 86400"),
    ("[timeouts]\nidle = \"10s\"", "whole seconds from 0 to 86400"),
    ("[limits]\nconnections = 0", "from 1 to"),
    ("[limits]\norigin_connections = 0", "from 1 to"),
    ("[limits]\nrequest_ahead = \"1MiB\"", "the maximum is 32KiB"),
    ("[transfer]\nsendfile = 1", "expected true or false"),
    ("[admin]\nlisten = \"9128\"", "expected an address with a port"),
    ("[proxy_protocol]\non = [\"127.0.0.1:9\"]", "proxy_protocol.on"),
    (
        "[tls]\nlisten = [\"127.0.0.1:0\"]\ncertificate = \"/none\"\nkey = \"/dev/null\"",
        "the file cannot be read",
    ),
    ("[nothing]\na = 1", "nothing: unknown key"),
    ("name = a b", "line 1: this is not TOML"),
    ("name = \"a\"\nname = \"b\"", "line 2: a key or section occurs twice"),
];

#[test]
fn check_config_reports_every_problem_without_phrases_of_libraries() {
    let dir = tempfile::tempdir().unwrap();
    let check = |toml: &str| run(&["--check-config", "--config", &write(dir.path(), toml)]);
    for (toml, expected) in WRONG {
        let wrong = check(toml);
        assert_eq!(wrong.status.code(), Some(2), "{toml}: {}", wrong.stderr);
        assert_eq!(wrong.stderr.lines().count(), 1, "{toml}: {}", wrong.stderr);
        assert!(wrong.stderr.contains(expected), "{toml}: {}", wrong.stderr);
        assert!(FOREIGN.iter().all(|phrase| !wrong.stderr.contains(phrase)), "{toml}: {}", wrong.stderr);
    }
    let wrong = check("workers = 99999\nsise = 1\n[cache]\nsize = \"x\"\n").stderr;
    assert_eq!(wrong.lines().filter(|line| line.contains("strait.toml: line ")).count(), 3, "{wrong}");
    let wrong = run(&["--check-config", "--cache-size", "banana"]).stderr;
    assert!(wrong.contains("give a size as in 4096") && !wrong.contains("ByteSize"), "{wrong}");
}

#[test]
fn check_config_lists_all_addresses_and_warns_of_a_small_file_system() {
    let dir = tempfile::tempdir().unwrap();
    let toml = "listen = [\"127.0.0.1:1\"]\nadmin.listen = \"127.0.0.1:2\"\ncache = { dir = \"/tmp\", size = \"9999PiB\" }";
    let checked = run(&["--check-config", "--config", &write(dir.path(), toml)]);
    assert_eq!(checked.text(), "ok\nlisten 127.0.0.1:1\nadmin 127.0.0.1:2\n", "{}", checked.stderr);
    assert!(checked.status.success() && checked.stderr.contains("in total; lower it"), "{}", checked.stderr);
}

#[test]
fn the_service_manager_is_notified() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    let hear = || {
        let mut bytes = [0; 200];
        let read = socket.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..read].to_vec()).unwrap()
    };
    let launch = Launch::new(PROGRAM).args(["--json", "--listen", "127.0.0.1:0"]);
    let proxy = Proxy::launch(launch.env("NOTIFY_SOCKET", &path));
    assert_eq!(hear(), "READY=1");
    proxy.process.signal(Signal::HUP);
    let (state, since) = hear().split_once('\n').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    let since = since.strip_prefix("MONOTONIC_USEC=").and_then(|since| since.parse::<u64>().ok());
    assert!(state == "RELOADING=1" && since.is_some_and(|since| since > 0));
    assert_eq!(hear(), "READY=1");
    proxy.end();
    assert_eq!(hear(), "STOPPING=1");
}

#[test]
fn inherited_socket_replaces_the_configured_address() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // The program inherits it.
    rustix::io::fcntl_setfd(&listener, rustix::io::FdFlags::empty()).unwrap();
    let script = format!("exec 3<&{}; export LISTEN_FDS=1 LISTEN_PID=$$; exec \"$@\"", listener.as_raw_fd());
    let launch = Launch::new("bash").args(["-c", &script, "bash", PROGRAM, "--json", "--workers", "2"]);
    let proxy = Proxy::launch(launch.args(["--origin", &origin()]));
    assert_eq!(proxy.address, address);
    assert_eq!(proxy.process.stderr().matches("listening on").count(), 1);
    for _ in 0..8 {
        assert!(proxy.get("/a").ends_with("hello"));
    }
    proxy.end();
}

#[test]
fn configured_user_has_no_capabilities() {
    if !root_or_skip() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("cache");
    fs::create_dir(&cache).unwrap();
    let passwd = fs::read_to_string("/etc/passwd").unwrap();
    let entry: Vec<_> = passwd.lines().find(|line| line.starts_with("nobody:")).unwrap().split(':').collect();
    let (uid, gid) = (entry[2].parse().unwrap(), entry[3].parse().unwrap());
    for path in [dir.path(), &cache] {
        std::os::unix::fs::chown(path, Some(uid), Some(gid)).unwrap();
    }
    let cache = cache.display().to_string();
    let (origin, options) = (origin(), ["--listen", "127.0.0.1:0", "--user", "nobody"]);
    let proxy = Proxy::start(&[&options[..], &["--origin", &origin, "--cache-dir", &cache]].concat());
    assert!(proxy.get("/a").ends_with("hello"));
    let id = proxy.process.id();
    for task in fs::read_dir(format!("/proc/{id}/task")).unwrap() {
        let task = format!("{id}/task/{}", task.unwrap().file_name().display());
        let ids = format!("{uid}\t{uid}\t{uid}\t{uid}");
        assert_eq!(status(&task, "Uid").as_deref(), Some(&*ids));
        assert_eq!(status(&task, "CapPrm").as_deref(), Some("0000000000000000"), "{task}");
    }
    assert_eq!(run(&["--listen", "127.0.0.1:0", "--user", "no-such-user"]).status.code(), Some(2));
    proxy.end();
}

#[test]
fn directory_of_the_unit_is_the_last_choice() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let config = path("strait.toml");
    let start = |toml: &str| {
        fs::write(&config, format!("listen = [\"127.0.0.1:0\"]\n{toml}")).unwrap();
        let launch = Launch::new(PROGRAM).arg("--config").arg(&config);
        let process = launch.env("CACHE_DIRECTORY", path("unit")).spawn().unwrap();
        process.wait_for_stderr("listening on ", LIMIT).unwrap();
        ["unit", "own"].map(|name| path(name).exists())
    };
    assert_eq!(start("cache.dir = \"\"\n"), [false, false]);
    assert_eq!(start(&format!("cache.dir = \"{}\"\n", path("own").display())), [false, true]);
    assert_eq!(start(""), [true, true]);
}

/// Capabilities belong to threads, so one that is started early would keep them all.
#[test]
fn threads_start_after_capabilities_are_dropped() {
    const CAP_DAC_OVERRIDE: u64 = 1 << 1;
    if !root_or_skip() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log").display().to_string();
    let proxy = Proxy::start(&["--listen", "127.0.0.1:0", "--origin", &origin(), "--log", &log]);
    assert!(proxy.get("/a").ends_with("hello"));
    let id = proxy.process.id();
    let tasks = fs::read_dir(format!("/proc/{id}/task")).unwrap();
    let tasks: Vec<_> =
        tasks.map(|task| format!("{id}/task/{}", task.unwrap().file_name().display())).collect();
    for task in &tasks {
        let held = status(task, "CapPrm").unwrap();
        assert_eq!(u64::from_str_radix(&held, 16), Ok(CAP_DAC_OVERRIDE), "{:?}", status(task, "Name"));
    }
    assert!(tasks.iter().any(|task| status(task, "Name").as_deref() == Some("log")));
    proxy.end();
}

const BROWSER: &str = "chromium-headless-shell";

#[test]
fn browser_shows_the_admin_page_and_escapes_markup_in_uris() {
    if !program_or_skip(BROWSER) {
        return;
    }
    let (origin, dir) = (origin(), tempfile::tempdir().unwrap());
    let options = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--origin", &origin];
    let proxy = Proxy::start(&options);
    for _ in 0..3 {
        proxy.get("/<i>hot</i>");
    }
    let page = format!("http://{}/", proxy.admin());
    let profile = format!("--user-data-dir={}", dir.path().display());
    let shown = || {
        let browser = Launch::new(BROWSER).args(["--no-sandbox", "--disable-gpu", &profile]);
        browser.args(["--virtual-time-budget=5000", "--dump-dom", &page]).run(LIMIT).unwrap().text()
    };
    let shown = shown();
    assert!(shown.contains("/&lt;i&gt;hot&lt;/i&gt;</td>"), "{shown}");
    assert!(shown.contains("<strong id=\"ratio\">66.7 %</strong>"), "{shown}");
    proxy.end();
}

#[test]
fn stored_responses_of_running_and_stopped_proxies_are_listed_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("cache").display().to_string();
    let options = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--cache-dir", &cache];
    let origin = origin();
    let proxy = Proxy::start(&[&options[..], &["--origin", &origin]].concat());
    for name in ["a", "b", "c", "d"] {
        proxy.get(&format!("/{name}"));
    }
    let admin = proxy.admin().to_string();
    let ask = |arguments: &[&str]| run(&[&["cache"], arguments, &["--admin", &admin]].concat());
    let stats = ask(&["stats"]).success().text();
    assert!(stats.contains("records          4\n") && stats.contains("refused          0\n"), "{stats}");
    let listed = ask(&["ls", "*/a"]).success().text();
    assert!(listed.contains(" 200 - http://www.example/a\n") && listed.lines().count() == 1, "{listed}");
    let (all, some) = (ask(&["ls", "--most", "4"]), ask(&["ls", "--most", "3", "--json"]));
    assert!(all.stderr.is_empty() && all.text().lines().count() == 4, "{}", all.stderr);
    assert!(some.stderr.contains("--most") && some.text().matches("\"uri\"").count() == 3, "{}", some.stderr);
    let purged = ask(&["purge", "http://www.example/a"]).success().text();
    assert_eq!(purged, "removed: 0 in memory, 1 stored\n");
    let none = "removed: 0 in memory, 0 stored\n";
    assert_eq!(ask(&["purge", "--tag", "none"]).success().text(), none);
    for wrong in [&["purge"][..], &["purge", "--tag", "a b"], &["purge", "http://a/", "--tag", "a"]] {
        assert_eq!(ask(wrong).status.code(), Some(2), "{wrong:?}");
    }
    let removed = ask(&["get", "http://www.example/a", "--json"]);
    assert_eq!((removed.status.code(), removed.text()), (Some(1), "[]\n".to_owned()));
    assert_eq!(ask(&["verify", "--json"]).success().text().matches("\"whole\":3").count(), 1);
    let busy = run(&["cache", "ls", "--cache-dir", &cache]);
    assert_eq!(busy.status.code(), Some(3), "{}", busy.stderr);
    assert!(busy.stderr.contains("--admin") && busy.stderr.lines().count() == 1, "{}", busy.stderr);
    proxy.end();
    let left = files(Path::new(&cache));
    let look =
        |arguments: &[&str]| run(&[&["cache"], arguments, &["--cache-dir", &cache, "--json"]].concat());
    let listed: Value = serde_json::from_str(&look(&["ls"]).success().text()).unwrap();
    assert_eq!(listed.as_array().unwrap().len(), 3, "{listed}");
    let stats = look(&["stats"]).success().text();
    assert!(stats.contains("\"records\":3") && stats.contains("\"refused\":0"), "{stats}");
    assert!(!stats.contains("capacity_bytes"), "no directory tells it: {stats}");
    let (help, counts) = (run(&["cache", "--help"]).success().text(), serde_json::from_str(&stats).unwrap());
    let Value::Object(counts) = counts else { panic!("{stats}") };
    for name in counts.keys() {
        assert!(help.contains(&format!("\n  {name} ")), "{name} is explained: {help}");
    }
    assert!(look(&["get", "http://www.example/b"]).success().text().contains("\"status\":200"));
    assert!(look(&["verify"]).success().text().contains("\"whole\":3"));
    assert_eq!(files(Path::new(&cache)), left, "who only looks changes nothing");
    assert_eq!(look(&["ban", "*/[bc]"]).success().text(), "{\"stored\":0}\n");
    assert_eq!(look(&["ban", "*/b"]).success().text(), "{\"stored\":1}\n");
    assert_eq!(look(&["purge", "http://www.example/c"]).success().text(), "{\"stored\":1}\n");
    assert!(look(&["verify"]).success().text().contains("\"whole\":1"));
    assert!(look(&["stats"]).success().text().contains("\"records\":1"));
    assert_eq!(run(&["cache", "ls"]).status.code(), Some(2));
    assert_eq!(run(&["cache", "ls", "--cache-dir", "/nonexistent"]).status.code(), Some(1));
    let other = dir.path().display().to_string();
    assert_eq!(run(&["cache", "ls", "--cache-dir", &other]).status.code(), Some(1), "it has no store");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "and is given none");
}

#[test]
fn removed_responses_in_memory_are_counted() {
    let proxy = Proxy::start(&["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--origin", &origin()]);
    for name in ["a", "b", "c"] {
        proxy.get(&format!("/{name}"));
    }
    let admin = proxy.admin().to_string();
    let ask = |arguments: &[&str]| run(&[&["cache"], arguments, &["--admin", &admin]].concat());
    let purged = ask(&["purge", "http://www.example/a"]).success().text();
    assert_eq!(purged, "removed: 1 in memory, 0 stored\n");
    assert_eq!(ask(&["ban", "*"]).success().text(), "removed: 2 in memory, 0 stored\n");
    proxy.end();
}

#[test]
fn log_on_standard_output_has_only_lines_of_requests() {
    let proxy = Proxy::start(&["--listen", "127.0.0.1:0", "--log", "-", "--origin", &origin()]);
    proxy.get("/a");
    proxy.process.signal(Signal::TERM);
    let finished = proxy.process.wait(LIMIT).unwrap().success();
    let account: Value = serde_json::from_str(finished.stderr.lines().next_back().unwrap()).unwrap();
    assert_eq!(account["requests"], 1);
    assert!(
        finished.text().lines().count() == 1 && !finished.text().contains("outcomes"),
        "{}",
        finished.text()
    );
}

#[test]
fn missing_permissions_are_reported_with_a_remedy() {
    if !root_or_skip() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log").display().to_string();
    let copy = everyones_copy(dir.path());
    let strait = |options: &[&str]| {
        let nobody = Launch::new("setpriv").args(AS_NOBODY).arg(&copy);
        nobody.args(options).run(LIMIT).unwrap()
    };
    for (options, expected) in [
        (["--listen", "127.0.0.1:81", "--workers", "1"], (3, "setcap cap_net_bind_service=+ep")),
        (["--listen", "127.0.0.1:0", "--log", &log], (2, "this user cannot write to ")),
    ] {
        let refused = strait(&options);
        let (code, expected) = expected;
        assert_eq!(
            (refused.status.code(), refused.stderr.lines().count()),
            (Some(code), 1),
            "{}",
            refused.stderr
        );
        assert!(refused.stderr.contains(expected), "{}", refused.stderr);
    }
    let cache = dir.path().join("cache").display().to_string();
    let refused = run(&["--listen", "127.0.0.1:0", "--user", "nobody", "--cache-dir", &cache]);
    assert_eq!(refused.status.code(), Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("as user nobody: cache.dir = "), "{}", refused.stderr);
}

#[test]
fn a_start_and_check_config_report_the_same_problems() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("cache").display().to_string();
    let config = write(dir.path(), "[cache]\ndir = \"/dev/null\"\n");
    for (options, expected) in [
        (&["--user", "no-such-user"][..], "no-such-user: there is no such user"),
        (&["--cache-dir", "/dev/null"], "cache.dir = \"/dev/null\": /dev/null is not a directory"),
        (&["--config", &config], "line 2: cache.dir = \"/dev/null\": /dev/null is not a directory"),
        (&["--log", "/nonexistent/log"], "/nonexistent is not a directory; create it first"),
        (&["--listen", "0.0.0.0:0"], "access.allow"),
        (&["--admin", "0.0.0.0:0"], "admin.allow"),
        (&["--user", "nobody", "--cache-dir", &cache], "as user nobody: cache.dir = "),
    ] {
        if options.contains(&"nobody") && !root_or_skip() {
            continue;
        }
        let start = run(&[&["--listen", "127.0.0.1:0"], options].concat());
        let check = run(&[&["--check-config", "--listen", "127.0.0.1:0"], options].concat());
        assert_eq!(start.status.code(), Some(2), "{options:?}: {}", start.stderr);
        assert!(start.stderr.contains(expected), "{options:?}: {}", start.stderr);
        assert_eq!((start.status.code(), start.stderr), (check.status.code(), check.stderr), "{options:?}");
    }
}

#[test]
fn check_config_warns_of_a_reload_and_a_rotation_that_will_fail() {
    let dir = tempfile::tempdir().unwrap();
    let config = write(dir.path(), "workers = 1");
    let checked = run(&["--check-config", "--listen", "127.0.0.1:0", "--config", &config]);
    assert!(
        checked.status.success() && checked.stderr.contains("its last line has no end"),
        "{}",
        checked.stderr
    );
    if !root_or_skip() {
        return;
    }
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let config = write(dir.path(), "workers = 1\n");
    let log = dir.path().join("log").display().to_string();
    let options = ["--user", "nobody", "--config", &config, "--log", &log];
    let checked = run(&[&["--check-config", "--listen", "127.0.0.1:0"], &options[..]].concat());
    assert!(checked.status.success(), "{}", checked.stderr);
    for (begin, end) in
        [("as user nobody: read ", "refuses each reload"), ("as user nobody: log.access = ", "chown")]
    {
        let has = |line: &str| line.contains(begin) && line.contains(end);
        assert!(checked.stderr.lines().any(has), "{begin}: {}", checked.stderr);
    }
}

#[test]
fn options_without_effect_are_reported() {
    let proxy = Proxy::start(&["--listen", "127.0.0.1:0", "--cache-size", "1GB"]);
    assert!(proxy.process.stderr().contains("--cache-size has no effect without --cache-dir"));
    proxy.process.signal(Signal::HUP);
    proxy.process.wait_for_stderr("nothing to reload: --config names no file\n", LIMIT).unwrap();
    assert!(!proxy.process.stderr().contains("reloaded"));
    proxy.end();
}

#[test]
fn silent_server_causes_a_timeout() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let asked = run(&["cache", "verify", "--admin", &address]);
    assert_eq!((asked.status.code(), asked.stderr.lines().count()), (Some(1), 1), "{}", asked.stderr);
    assert!(asked.stderr.contains("no response within 10 s"), "{}", asked.stderr);
}

#[test]
fn wrong_requests_and_other_servers_are_reported_in_one_line() {
    let other = origin();
    let other = other.strip_prefix("http://").unwrap();
    for (arguments, code, expected) in [
        (["get", "/big.bin"], 2, "give the whole URI, as in http://host/path"),
        (["ban", ""], 2, "the pattern is empty"),
        (["ls", "*"], 1, "is not the admin address of a proxy"),
    ] {
        let asked = run(&[&["cache"], &arguments[..], &["--admin", other]].concat());
        assert_eq!((asked.status.code(), asked.stderr.lines().count()), (Some(code), 1), "{}", asked.stderr);
        assert!(asked.stderr.contains(expected), "{}", asked.stderr);
    }
}

/// Returns the files of a directory: name, time of change and contents.
fn files(dir: &Path) -> Vec<(String, SystemTime, Vec<u8>)> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let mut files: Vec<_> = entries
        .map(|entry| {
            let changed = entry.metadata().unwrap().modified().unwrap();
            (entry.file_name().into_string().unwrap(), changed, fs::read(entry.path()).unwrap())
        })
        .collect();
    files.sort_unstable();
    files
}

#[test]
fn stalled_reader_of_lines_does_not_keep_the_proxy_from_ending() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("strait.toml");
    let text = "listen = [\"127.0.0.1:0\"]\n[pool.p]\nservers = [\"127.0.0.1:1\", \"127.0.0.2:1\"]\nfailures = 1\n[[site]]\n[[site.route]]\npool = \"p\"\n";
    fs::write(&config, text).unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    let mut command = Command::new(PROGRAM);
    command.arg("--config").arg(&config).stdout(Stdio::null()).stderr(writer.try_clone().unwrap());
    let mut process = command.spawn().unwrap();
    // The command has copies of the pipe.
    drop(command);
    let mut reader = BufReader::new(reader);
    let mut lines = reader.by_ref().lines().map(Result::unwrap);
    let address = lines.find_map(|line| Some(line.strip_prefix("listening on ")?.parse().unwrap())).unwrap();
    // Another description of the pipe, because the program's writes must block.
    let path = format!("/proc/self/fd/{}", writer.as_raw_fd());
    let mut filler = fs::OpenOptions::new()
        .write(true)
        .custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed())
        .open(path)
        .unwrap();
    while filler.write(&[b'x'; 4096]).is_ok() {}
    while filler.write(b"x").is_ok() {}
    // A server that fails makes a line.
    let answer = get(address, "/x");
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    rustix::process::kill_process(rustix::process::Pid::from_child(&process), Signal::TERM).unwrap();
    let has_ended = wait_until(LIMIT, || process.try_wait().unwrap().is_some());
    if !has_ended {
        process.kill().unwrap();
        process.wait().unwrap();
    }
    assert!(has_ended);
}
