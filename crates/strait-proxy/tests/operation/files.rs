//! Static files of a route.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::{Duration, SystemTime};

use lab::wait_until;
use strait_proxy::{Clock, Config, Proxy};
use tempfile::TempDir;

use crate::rig::{Answer, Client, LIMIT, body};

/// Bytes of a file that sendfile sends.
const LEN: usize = 300_000;

struct Site {
    proxy: Proxy,
    _dir: TempDir,
}

impl Site {
    /// Starts a proxy for a directory with files, links and a secret beside it.
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let www = dir.path().join("www");
        fs::create_dir_all(www.join("sub")).unwrap();
        fs::create_dir_all(www.join(".git")).unwrap();
        fs::create_dir_all(www.join(".well-known")).unwrap();
        fs::write(dir.path().join("secret"), "secret").unwrap();
        for (name, text) in [
            ("index.html", "front"),
            ("a b.txt", "blank"),
            ("sub/index.html", "sub"),
            (".git/config", "secret"),
            (".well-known/token", "token"),
            ("empty", ""),
        ] {
            fs::write(www.join(name), text).unwrap();
        }
        fs::write(www.join("long.bin"), body(LEN)).unwrap();
        // The tag of a file that was just written is weak, and changes a second later.
        let long = fs::File::options().write(true).open(www.join("long.bin")).unwrap();
        long.set_modified(SystemTime::now() - Duration::from_mins(1)).unwrap();
        symlink("a b.txt", www.join("inside")).unwrap();
        symlink("../secret", www.join("outside")).unwrap();
        symlink(dir.path().join("secret"), www.join("absolute")).unwrap();
        symlink("/proc/self/root", www.join("magic")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, www.join("pipe"), rustix::fs::Mode::RWXU).unwrap();
        let toml = format!(
            "listen = [\"127.0.0.1:0\"]\nworkers = 1\n[[site]]\n[[site.route]]\nfiles = \"{}\"\n",
            www.display()
        );
        let config = Config::from_toml(&toml).unwrap();
        config.check_places().unwrap();
        Self { proxy: Proxy::start(&config, Clock::system()).unwrap(), _dir: dir }
    }

    fn ask(&self, line: &str, fields: &str) -> Answer {
        let mut client = Client::to(self.proxy.address());
        client.send(format!("{line} HTTP/1.1\r\nHost: www.example:8080\r\n{fields}\r\n"));
        if line.starts_with("HEAD") { client.head().unwrap() } else { client.answer().unwrap() }
    }

    fn get(&self, path: &str) -> Answer {
        self.ask(&format!("GET {path}"), "")
    }
}

#[test]
fn files_are_served_with_index_and_type() {
    let site = Site::start();
    for (path, text, kind) in [
        ("/", "front", "text/html; charset=utf-8"),
        ("/index.html?x", "front", "text/html; charset=utf-8"),
        ("/a%20b.txt", "blank", "text/plain; charset=utf-8"),
        ("/inside", "blank", "application/octet-stream"),
        ("/sub/", "sub", "text/html; charset=utf-8"),
        ("/sub/../sub/index.html", "sub", "text/html; charset=utf-8"),
        ("/.well-known/token", "token", "application/octet-stream"),
        ("/empty", "", "application/octet-stream"),
    ] {
        let answer = site.get(path);
        assert_eq!((answer.status(), answer.text().as_str()), (200, text), "{path}");
        assert_eq!(answer.field("content-type"), Some(kind), "{path}");
    }
    let answer = site.get("/sub?x=y");
    assert_eq!((answer.status(), answer.field("location")), (301, Some("http://www.example:8080/sub/?x=y")));
    assert_eq!(site.get("//sub").field("location"), Some("http://www.example:8080//sub/"));
    let before = site.proxy.report().sendfile;
    let long = site.get("/long.bin");
    assert!(long.body == body(LEN));
    // The exchange is counted after its last byte.
    assert!(wait_until(LIMIT, || site.proxy.report().sendfile - before == LEN as u64));
    let head = site.ask("HEAD /long.bin", "");
    assert_eq!((head.status(), head.field("content-length")), (200, Some("300000")));
    assert_eq!(head.field("accept-ranges"), Some("bytes"));
}

#[test]
fn no_path_leads_out_of_the_directory() {
    let site = Site::start();
    for path in [
        "/../secret",
        "/..%2fsecret",
        "/%2e%2e/secret",
        "/sub/../../secret",
        "/..\\secret",
        "/..%5csecret",
        "/outside",
        "/absolute",
        "/magic/etc/passwd",
        "/proc/self/environ",
        "/.git/config",
        "/%2egit/config",
        "/sub/..%2f.git/config",
        "/index.html%00.txt",
        "/pipe",
        "/missing",
        "/index.html/x",
    ] {
        let answer = site.get(path);
        assert_eq!(answer.status(), 404, "{path}: {}", answer.text());
    }
    // A directory without an index is not listed.
    assert_eq!(site.get("/.well-known/").status(), 404);
    let answer = site.ask("POST /index.html", "Content-Length: 0\r\n");
    assert_eq!((answer.status(), answer.field("allow")), (405, Some("GET, HEAD")));
}

#[test]
fn ranges_and_conditions_are_answered() {
    let site = Site::start();
    let whole = site.get("/long.bin");
    let tag = whole.field("etag").unwrap().to_owned();
    let modified = whole.field("last-modified").unwrap().to_owned();
    let ask = |fields: &str| site.ask("GET /long.bin", fields);
    let part = ask("Range: bytes=1000-200999\r\n");
    assert_eq!((part.status(), part.field("content-range")), (206, Some("bytes 1000-200999/300000")));
    assert!(part.body == body(LEN)[1000..201_000]);
    assert!(ask("Range: bytes=-5\r\n").body == body(LEN)[LEN - 5..]);
    let none = ask("Range: bytes=300000-\r\n");
    assert_eq!((none.status(), none.field("content-range")), (416, Some("bytes */300000")));
    // Several ranges: the whole file.
    assert_eq!(ask("Range: bytes=0-0,5-5\r\n").body.len(), LEN);
    let same = ask(&format!("If-None-Match: {tag}\r\n"));
    assert_eq!((same.status(), same.field("etag"), same.body.len()), (304, Some(&*tag), 0));
    assert_eq!(ask(&format!("If-Modified-Since: {modified}\r\n")).status(), 304);
    assert_eq!(ask("If-None-Match: \"x\"\r\n").status(), 200);
    let other = ask(&format!("If-Match: \"x\"\r\nIf-None-Match: {tag}\r\nRange: bytes=0-9\r\n"));
    assert_eq!((other.status(), other.body.len(), other.field("date").is_some()), (412, 0, true));
    assert_eq!(ask(&format!("If-Match: \"x\", {tag}\r\nRange: bytes=0-9\r\n")).status(), 206);
    assert_eq!(ask(&format!("If-Match: {tag}\r\nIf-None-Match: {tag}\r\n")).status(), 304);
    assert_eq!(ask(&format!("If-Unmodified-Since: {modified}\r\n")).status(), 200);
    assert_eq!(ask("If-Unmodified-Since: Sun, 06 Nov 1994 08:49:37 GMT\r\n").status(), 412);
    assert_eq!(ask("Range: bytes=0-9\r\nIf-Range: \"x\"\r\n").status(), 200);
}

#[test]
fn missing_directory_is_reported() {
    let toml = "[[site]]\n[[site.route]]\nfiles = \"/nowhere\"\n";
    let config = Config::from_toml(toml).unwrap();
    let error = Config::locate(toml, config.check_places().unwrap_err()).to_string();
    assert_eq!(error, "line 3: site[1].route[1].files = \"/nowhere\": this is not a directory");
}

#[test]
fn rewrite_removes_the_path_of_the_route_from_names() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("sub")).unwrap();
    for name in ["index.html", "app.js", "sub/index.html"] {
        fs::write(dir.path().join(name), name).unwrap();
    }
    let dir_text = dir.path().display();
    let toml = format!(
        "listen = [\"127.0.0.1:0\"]\nworkers = 1\n[[site]]\nroute = [\n\
         {{ path = \"/static\", files = \"{dir_text}\", rewrite = \"/\" }},\n\
         {{ path_exact = \"/start\", files = \"{dir_text}\", rewrite = \"/\" }},\n\
         {{ path = \"/v\", path_regex = '^/v/[0-9]+/(.+)$', files = \"{dir_text}\", rewrite = \"/{{1}}\" }},\n\
         {{ path = \"/lost\", files = \"{dir_text}\" }},\n]\n"
    );
    let config = Config::from_toml(&toml).unwrap();
    let hint = "site[1].route[4].files";
    let hints = config.hints();
    assert!(hints.len() == 1 && hints[0].starts_with(hint) && hints[0].contains("\"lost\""), "{hints:?}");
    let proxy = Proxy::start(&config, Clock::system()).unwrap();
    let site = Site { proxy, _dir: dir };
    for (path, expected) in [
        ("/static/app.js", "app.js"),
        ("/static/", "index.html"),
        ("/static/sub/", "sub/index.html"),
        ("/static/sub/../app.js", ""),
        ("/start", "index.html"),
        ("/v/12/app.js", "app.js"),
        ("/lost/app.js", ""),
    ] {
        let answer = site.get(path);
        let text = if answer.status() == 200 { answer.text() } else { String::new() };
        assert_eq!(text, expected, "{path}: {}", answer.head);
    }
    assert_eq!(site.get("/static/../../etc/passwd").status(), 400);
    for (path, location) in [("/static?a", "/static/?a"), ("/static/sub", "/static/sub/")] {
        let answer = site.get(path);
        let location = format!("http://www.example:8080{location}");
        assert_eq!((answer.status(), answer.field("location")), (301, Some(&*location)), "{path}");
    }
}

#[test]
fn precompressed_file_is_sent_to_clients_that_accept_its_coding() {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in [
        ("a.js", "plain"),
        ("a.js.gz", "as gzip"),
        ("a.js.zst", "as zstd"),
        ("b.css", "plain"),
        ("c.gz", "alone"),
    ] {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        let file = fs::File::options().write(true).open(path).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_mins(1)).unwrap();
    }
    let toml = format!(
        "listen = [\"127.0.0.1:0\"]\nworkers = 1\n[[site]]\nroute = [{{ files = \"{}\", precompressed = true }}]\n",
        dir.path().display()
    );
    let proxy = Proxy::start(&Config::from_toml(&toml).unwrap(), Clock::system()).unwrap();
    let site = Site { proxy, _dir: dir };
    for (path, accepted, text, coding, varies) in [
        ("/a.js", "", "plain", None, true),
        ("/a.js", "Accept-Encoding: br, gzip\r\n", "as gzip", Some("gzip"), true),
        ("/a.js", "Accept-Encoding: gzip, zstd\r\n", "as zstd", Some("zstd"), true),
        ("/a.js", "Accept-Encoding: gzip;q=0\r\n", "plain", None, true),
        ("/b.css", "Accept-Encoding: gzip\r\n", "plain", None, true),
        // Named itself, it is a file as any other.
        ("/a.js.gz", "Accept-Encoding: gzip\r\n", "as gzip", None, false),
        ("/c.gz", "Accept-Encoding: gzip\r\n", "alone", None, false),
        ("/c", "Accept-Encoding: gzip\r\n", "", None, false),
    ] {
        let answer = site.ask(&format!("GET {path}"), accepted);
        let got = if answer.status() == 200 { answer.text() } else { String::new() };
        assert_eq!((got.as_str(), answer.field("content-encoding")), (text, coding), "{path} {accepted}");
        assert_eq!(answer.field("vary"), Some("Accept-Encoding").filter(|_| varies), "{path} {accepted}");
    }
    let zstd = "Accept-Encoding: zstd\r\n";
    let whole = site.ask("GET /a.js", zstd);
    let tag = whole.field("etag").unwrap().to_owned();
    assert_ne!(Some(&*tag), site.get("/a.js").field("etag"));
    assert_eq!(whole.field("content-type"), Some("text/javascript; charset=utf-8"));
    let part = site.ask("GET /a.js", &format!("{zstd}Range: bytes=3-4\r\nIf-Range: {tag}\r\n"));
    assert_eq!((part.status(), part.text().as_str(), part.field("etag")), (206, "zs", Some(&*tag)));
    assert_eq!(site.ask("GET /a.js", &format!("{zstd}If-None-Match: {tag}\r\n")).status(), 304);
    assert_eq!(site.ask("GET /a.js", &format!("If-None-Match: {tag}\r\n")).status(), 200);
}
