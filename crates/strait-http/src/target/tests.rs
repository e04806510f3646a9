//! Tests of targets, hosts and keys, with the examples of the RFCs and by properties.

use proptest::prelude::*;

use super::*;
use crate::head;

fn key(uri: &str) -> String {
    let mut key = String::new();
    Uri::parse(uri).unwrap().write_key(&mut key);
    key
}

fn key_of_request(head: &str) -> Result<Option<String>, Malformed> {
    let request = head::request(head.as_bytes())?.unwrap().0;
    let mut key = String::new();
    let host = host(&request)?;
    let uri = match Target::parse(request.method, request.target)? {
        Target::Absolute(uri) => Some(uri),
        Target::Origin(path) => host.map(|authority| Uri { scheme: Scheme::Http, authority, path }),
        Target::Authority(_) | Target::Asterisk => None,
    };
    Ok(uri.map(|uri| {
        uri.write_key(&mut key);
        key
    }))
}

#[test]
fn target_forms_depend_on_the_method() {
    let name = |host, port| Authority { host: Host::Name(host), port };
    for (method, target, expected) in [
        ("GET", "/a?b", Target::Origin("/a?b")),
        ("GET", "//a", Target::Origin("//a")),
        ("OPTIONS", "*", Target::Asterisk),
        ("CONNECT", "a.example:443", Target::Authority(name("a.example", Some(443)))),
        (
            "GET",
            "HTTP://A.example:/b",
            Target::Absolute(Uri { scheme: Scheme::Http, authority: name("a.EXAMPLE", None), path: "/b" }),
        ),
    ] {
        assert_eq!(Target::parse(method, target), Ok(expected), "{method} {target}");
    }
    for (method, target) in [
        ("GET", "*"),
        ("GET", "a.example:80"),
        ("GET", "a"),
        ("GET", ""),
        ("GET", "ftp://a/"),
        ("GET", "http:/a"),
        ("GET", "http:///b"),
        ("GET", "http://:80/b"),
        ("GET", "http://u@a/"),
        ("GET", "http://u:p@a/"),
        ("GET", "http://a/#b"),
        ("GET", "/#b"),
        ("GET", "/\u{e9}"),
        ("GET", "http://a\\b/"),
        ("CONNECT", "a.example"),
        ("CONNECT", "a.example:"),
        ("CONNECT", "a.example:0"),
        ("CONNECT", "a.example:65536"),
        ("CONNECT", "/a"),
        ("CONNECT", "http://a:80/"),
        ("CONNECT", "a:80/"),
        ("CONNECT", "*"),
    ] {
        assert!(Target::parse(method, target).is_err(), "{method} {target}");
    }
}

#[test]
fn authorities_are_names_or_addresses() {
    let shown = |text| Authority::parse(text).map(|authority| authority.to_string());
    for (text, expected) in [
        ("Example.COM:080", "example.com:80"),
        ("a_b.example.", "a_b.example."),
        ("a.:80", "a.:80"),
        ("127.0.0.1:1", "127.0.0.1:1"),
        ("[2001:DB8:0::1]", "[2001:db8::1]"),
        ("[::ffff:1.2.3.4]:8080", "[::ffff:1.2.3.4]:8080"),
        ("[::1]:", "[::1]"),
    ] {
        assert_eq!(shown(text).as_deref(), Ok(expected), "{text}");
    }
    assert!(matches!(Authority::parse("1.2.3.4").unwrap().host, Host::V4(_)));
    assert!(matches!(Authority::parse("1.2.3").unwrap().host, Host::Name("1.2.3")));
    let long = "a".repeat(256);
    for text in [
        "",
        ":80",
        "a b",
        "a,b",
        "a/b",
        "a:b",
        "a:+1",
        "a:1:2",
        "::1",
        "[::1",
        "[::1]a",
        "[::1%25eth0]",
        "[v1.a]",
        "[]",
        "a%41",
        "u@a",
        "@a",
        "a:99999",
        ".",
        "..",
        ".a",
        "a..",
        "a..b",
        &long,
    ] {
        assert!(Authority::parse(text).is_err(), "{text}");
    }
}

#[test]
fn absolute_target_overrides_host() {
    for (head, expected) in [
        ("GET /a HTTP/1.1\r\nHost: A:80\r\n\r\n", Some("http://a/a")),
        ("GET http://b HTTP/1.1\r\nHost: a\r\n\r\n", Some("http://b/")),
        ("GET https://b:443/ HTTP/1.0\r\n\r\n", Some("https://b/")),
        ("GET /a HTTP/1.0\r\n\r\n", None),
        ("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", None),
    ] {
        assert_eq!(key_of_request(head).unwrap().as_deref(), expected, "{head}");
    }
    for head in [
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost:\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a, b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: http://a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: u@a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\u{e9}\r\n\r\n",
        "GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n",
        "GET http://b/ HTTP/1.1\r\n\r\n",
        "GET http://b/ HTTP/1.1\r\nHost: u@b\r\n\r\n",
    ] {
        assert_eq!(key_of_request(head).map_err(Malformed::status), Err(400), "{head}");
    }
}

#[test]
fn equivalent_uris_have_the_same_key() {
    for uri in ["http://example.com:80", "HTTP://EXAMPLE.com:/", "http://example.COM"] {
        assert_eq!(key(uri), "http://example.com/");
    }
    assert_eq!(key("HTTPS://A:0443?B=%7e"), "https://a/?B=%7e");
    assert_eq!(key("http://[::0:1]/"), "http://[::1]/");
}

#[test]
fn different_paths_have_different_keys() {
    for path in ["/%7esmith", "/%7Esmith", "/~smith", "/%e4%2F%2e%2E/../b", "/%7e%%331%4"] {
        assert_eq!(key(&format!("http://a:443{path}")), format!("http://a:443{path}"));
    }
}

#[test]
fn origin_form_is_never_empty() {
    for (method, uri, expected) in [
        ("GET", "http://a", ("/", "")),
        ("GET", "http://a?b", ("/", "?b")),
        ("GET", "http://a/%7eb?c", ("", "/%7eb?c")),
        ("OPTIONS", "http://a", ("*", "")),
        ("OPTIONS", "http://a?b", ("/", "?b")),
        ("OPTIONS", "http://a/", ("", "/")),
    ] {
        assert_eq!(Uri::parse(uri).unwrap().origin_form(method), expected, "{method} {uri}");
    }
}

proptest! {
    /// Normalising a key does not change it.
    #[test]
    fn keys_are_normal(
        host in "[A-Za-z0-9-]{1,3}(\\.[A-Za-z0-9-]{1,3}){0,3}\\.?",
        port: Option<u16>,
        path in "(/([!-~]|%[0-9a-fA-F]{0,2}){0,20})?",
    ) {
        prop_assume!(!path.contains('#') && port != Some(0));
        let port = port.map(|port| format!(":{port}")).unwrap_or_default();
        let once = key(&format!("hTTp://{host}{port}{path}"));
        prop_assert_eq!(key(&once), once);
    }

    #[test]
    fn random_text_does_not_panic(method in "GET|CONNECT|OPTIONS", target in "\\PC{0,40}", uri in "http://[!-~]{0,40}") {
        for target in [&target, &uri] {
            if let Ok(Target::Absolute(uri)) = Target::parse(&method, target) {
                let mut key = String::new();
                uri.write_key(&mut key);
                prop_assert!(Uri::parse(&key).unwrap().is_same_origin(&uri), "{}", key);
            }
        }
    }
}
