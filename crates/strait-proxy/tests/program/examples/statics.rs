//! Static site.

use std::fs;

use super::{Example, Site};

const HOST: &str = "https://www.example.org";

fn start() -> Site {
    let example = Example::read("static")
        .certificate("www.example.org", &["www.example.org"])
        .certificate("example.org", &["example.org"]);
    let www = example.authority.file("www");
    fs::create_dir_all(www.join("assets")).unwrap();
    fs::create_dir_all(www.join("about")).unwrap();
    for (name, text) in [
        ("index.html", "front"),
        ("about/index.html", "about"),
        ("assets/app.3f2a91c4.js", "let a"),
        ("assets/logo.svg", "<svg/>"),
    ] {
        fs::write(www.join(name), text).unwrap();
    }
    let www = www.display().to_string();
    example.put("/srv/www", &www).start()
}

#[test]
fn files_have_the_headers_of_their_kind() {
    let site = start();
    for (path, text, lifetime) in [
        ("/", "front", "no-cache"),
        ("/about/", "about", "no-cache"),
        ("/assets/app.3f2a91c4.js", "let a", "public, max-age=31536000, immutable"),
        ("/assets/logo.svg", "<svg/>", "no-cache"),
    ] {
        let response = site.get(&format!("{HOST}{path}"), "");
        assert_eq!((response.head.status, response.body.as_slice()), (200, text.as_bytes()), "{path}");
        let field = |name| response.head.field(name);
        assert_eq!(field("cache-control"), Some(lifetime), "{path}");
        assert_eq!(field("x-content-type-options"), Some("nosniff"), "{path}");
        assert_eq!(field("strict-transport-security"), Some("max-age=31536000"), "{path}");
        assert_eq!(field("x-frame-options").is_some(), !path.starts_with("/assets"), "{path}");
        let tag = format!("If-None-Match: {}\r\n", field("etag").unwrap());
        assert_eq!(site.get(&format!("{HOST}{path}"), &tag).head.status, 304, "{path}");
    }
    let part = site.get(&format!("{HOST}/"), "Range: bytes=1-2\r\n");
    assert_eq!((part.head.status, part.body.as_slice()), (206, &b"ro"[..]));
}

#[test]
fn missing_files_are_not_found_and_moved_ones_redirect() {
    let site = start();
    for path in ["/missing", "/assets/app.00000000.js", "/.git/config"] {
        let response = site.get(&format!("{HOST}{path}"), "");
        assert_eq!(response.head.status, 404, "{path}");
        assert_eq!(response.head.field("x-content-type-options"), Some("nosniff"), "{path}");
    }
    for (url, status, location) in [
        ("https://www.example.org/about.html", 301, "/about/"),
        ("https://www.example.org/blog/a?b", 301, "https://blog.example.org/blog/a?b"),
        ("https://example.org/a?b", 308, "https://www.example.org/a?b"),
        ("http://www.example.org/a?b", 308, "https://www.example.org"),
        ("http://example.org/a?b", 308, "https://example.org"),
    ] {
        let response = site.get(url, "");
        let to = response.head.field("location").unwrap_or_default();
        assert_eq!(response.head.status, status, "{url}");
        assert!(if status == 308 { to.starts_with(location) } else { to == location }, "{url}: {to}");
    }
}
