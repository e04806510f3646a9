//! curl through the forward proxy, with nginx, Apache and Python's http.server as origins; wget,
//! which resumes a download.

use std::fs;
use std::path::Path;

use lab::{Finished, Launch, program_or_skip, wait_until};

use crate::body::Body;
use crate::origin::{Gate, Origin};
use crate::rig::{LIMIT, Proxy, Setup};
use crate::servers::{Kind, TLS_PORT, Web, certificate, own_address, write_old};

const SMALL: Body = Body::new(1, 1234);
const LARGE: Body = Body::new(2, 1_234_567);

/// curl through a proxy: fails on HTTP errors, and shows no progress.
fn curl(proxy: &Proxy, arguments: &[&str]) -> Finished {
    let own = ["--disable", "--silent", "--show-error", "--noproxy", "", "--proxy", &proxy.url()];
    Launch::new("curl").args(own).args(arguments).run(LIMIT).unwrap()
}

fn works_with_curl(kind: Kind) {
    if !program_or_skip("curl") {
        return;
    }
    let make = |files: &Path| {
        write_old(&files.join("small"), &SMALL.bytes(0..SMALL.len));
        write_old(&files.join("large"), &LARGE.bytes(0..LARGE.len));
    };
    let Some(web) = Web::start(kind, make) else { return };
    let proxy = Setup::forward().start();
    let (small, large) = (web.url("small"), web.url("large"));
    let get = |url: &str, more: &[&str]| curl(&proxy, &[&["--fail", url], more].concat()).success();

    for (url, body) in [(&small, SMALL), (&large, LARGE)] {
        body.assert_whole(&get(url, &[]).stdout);
        let is_hit = || {
            let seen = get(url, &["--dump-header", "/dev/stderr"]);
            body.assert_whole(&seen.stdout);
            seen.stderr.contains("Cache-Status: strait; hit")
        };
        assert!(wait_until(LIMIT, is_hit), "{kind:?}: {url} stays out of the store");
    }
    let part = get(&large, &["--range", "1000000-1000099"]).stdout;
    assert!(part.len() == 100 && LARGE.is(1_000_000, &part));
    let last = get(&large, &["--range", "-7"]).stdout;
    assert!(last.len() == 7 && LARGE.is(LARGE.len - 7, &last));
    let both = get(&small, &["--next", "--silent", "--proxy", &proxy.url(), "--noproxy", "", &large]).stdout;
    assert!(SMALL.is(0, &both[..1234]) && LARGE.is(0, &both[1234..]), "two on one connection");
    let head = get(&large, &["--head"]).text();
    assert!(head.contains("HTTP/1.1 200") && head.contains("Content-Length: 1234567"), "{head}");
    let none = curl(&proxy, &["--fail", &web.url("none")]);
    assert_eq!(none.status.code(), Some(22), "404 is passed on");
    assert_eq!(web.sent().len(), 2, "{kind:?}: {:?}", web.sent());
}

#[test]
fn curl_with_nginx() {
    works_with_curl(Kind::Nginx);
}

#[test]
fn curl_with_apache() {
    works_with_curl(Kind::Apache);
}

#[test]
fn curl_with_pythons_server() {
    works_with_curl(Kind::Python);
}

#[test]
fn curl_uploads_with_and_without_100_continue() {
    if !program_or_skip("curl") {
        return;
    }
    let writable = "<Location />\nDav On\n</Location>";
    let Some(web) = Web::start_at(own_address(), Kind::Apache, writable, |_| {}) else { return };
    let proxy = Setup::forward().start();
    let source = tempfile::NamedTempFile::new().unwrap();
    fs::write(source.path(), LARGE.bytes(0..LARGE.len)).unwrap();
    let source = source.path().to_str().unwrap();
    let in_chunks = "Transfer-Encoding: chunked";
    for (name, more) in [
        ("with-length", &[][..]),
        ("in-chunks", &["--header", in_chunks]),
        ("expected", &["--expect100-timeout", "40", "--header", "Expect: 100-continue"]),
        ("not-expected", &["--header", "Expect:"]),
    ] {
        let url = web.url(name);
        let seen = curl(&proxy, &[&["--verbose", "--fail", "--upload-file", source, &url], more].concat());
        let seen = seen.success();
        assert!(seen.stderr.contains("< HTTP/1.1 201 Created"), "{}", seen.stderr);
        // curl itself delays large bodies.
        let is_allowed = seen.stderr.contains("< HTTP/1.1 100 Continue");
        assert_eq!(name != "not-expected", is_allowed, "{name}: {}", seen.stderr);
        LARGE.assert_whole(&fs::read(web.files().join(name)).unwrap());
    }
    // A GET after each PUT returns the new body.
    let url = web.url("with-length");
    LARGE.assert_whole(&curl(&proxy, &[&url]).success().stdout);
    let put = ["--fail", "--request", "PUT", "--data-binary", "short", &url];
    let _ = curl(&proxy, &put).success();
    assert_eq!(curl(&proxy, &[&url]).success().text(), "short");
}

#[test]
fn curl_tunnels_to_a_server_with_tls() {
    if !program_or_skip("curl") {
        return;
    }
    let (folder, ip) = (tempfile::tempdir().unwrap(), own_address());
    let Some((certificate, key)) = certificate(folder.path(), ip) else { return };
    let (authority, key) = (certificate.display().to_string(), key.display());
    let more = format!("listen {ip}:{TLS_PORT} ssl; ssl_certificate {authority}; ssl_certificate_key {key};");
    let make = |files: &Path| write_old(&files.join("large"), &LARGE.bytes(0..LARGE.len));
    let Some(_web) = Web::start_at(ip, Kind::Nginx, &more, make) else { return };
    let url = format!("https://{ip}:{TLS_PORT}/large");
    let fetch = ["--fail", "--cacert", &authority, &url];

    let proxy = Setup::forward().config(&format!("access.connect_ports = [{TLS_PORT}]\n")).start();
    LARGE.assert_whole(&curl(&proxy, &fetch).success().stdout);
    let strict = Setup::forward().start();
    let refused = curl(&strict, &fetch);
    assert!(refused.stderr.contains("403"), "only ports that are named: {}", refused.stderr);
}

#[test]
fn wget_resumes_an_interrupted_download() {
    if !program_or_skip("wget") {
        return;
    }
    let gate = Gate::default();
    let origin = Origin::of_bodies_behind(&gate);
    let proxy = Setup::forward().start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    let wget = || {
        let launch = Launch::new("wget").env("http_proxy", proxy.url()).env("no_proxy", "");
        let launch = launch.args(["--no-config", "--tries=1", "--continue", "--output-document"]).arg(&file);
        launch.arg(format!("http://{}{}", origin.address, LARGE.target()))
    };
    gate.open(LARGE.len / 2);
    let stopped = wget().spawn().unwrap();
    let len = || fs::metadata(&file).map_or(0, |metadata| metadata.len());
    assert!(wait_until(LIMIT, || len() > LARGE.len / 4), "{} of {}", len(), LARGE.len);
    drop(stopped);
    let before = len();
    assert!(before <= LARGE.len / 2);
    gate.open(LARGE.len);
    let ended = wget().run(LIMIT).unwrap().success();
    assert!(ended.stderr.contains("206 Partial Content"), "{}", ended.stderr);
    LARGE.assert_whole(&fs::read(&file).unwrap());
    assert_eq!(origin.asked().len(), 1, "the fill went on, and the rest came from it");
}
