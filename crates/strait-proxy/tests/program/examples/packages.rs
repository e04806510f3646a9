//! Mirror of package repositories.

use super::{DAY, Example, OTHER_CLIENT, Site, send, ttl};
use crate::origin::Origin;

const DEBIAN: &str = "http://debian.example.org/debian";

/// Starts a repository that gives all files a minute, except those with "plain" in their name.
fn repository() -> Origin {
    Origin::new(|request, stream| {
        let is_plain = request.target.contains("plain");
        let fields = if is_plain { "" } else { "Cache-Control: public, max-age=60\r\n" };
        let accept = request.field("accept").unwrap_or("none");
        send(request, stream, ("200 OK", fields), accept.as_bytes())
    })
}

fn start(origin: &Origin) -> Site {
    let hosts = ["debian.example.org", "npm.example.org", "python.example.org"];
    Example::read("packages")
        .certificate("packages", &hosts)
        .server("https://deb.debian.org", origin)
        .server("https://registry.npmjs.org", origin)
        .server("http://10.0.0.9:8080", origin)
        .put("10.0.0.0/8", "127.0.0.1/32")
        .start()
}

#[test]
fn packages_stay_and_indexes_follow_their_origin() {
    let origin = repository();
    let site = start(&origin);
    let hash = "0123456789abcdef".repeat(4);
    for (url, is_kept) in [
        (format!("{DEBIAN}/pool/main/c/curl/curl_8.14.1-2_amd64.deb"), true),
        (
            format!("{DEBIAN}-security/pool/updates/main/c/curl/libcurl4t64_8.14.1-2%2bdeb13u1_amd64.deb"),
            true,
        ),
        (format!("{DEBIAN}/dists/trixie/main/by-hash/SHA256/{hash}"), true),
        (format!("{DEBIAN}/dists/trixie/InRelease"), false),
        (format!("{DEBIAN}/README"), false),
        ("https://npm.example.org/left-pad/-/left-pad-1.3.0.tgz".to_owned(), true),
        ("https://npm.example.org/@types/node/-/node-24.0.0.tgz".to_owned(), true),
        ("https://npm.example.org/left-pad".to_owned(), false),
        ("https://python.example.org/simple/plain/".to_owned(), false),
        ("https://python.example.org/packages/plain-1.0-py3-none-any.whl".to_owned(), true),
    ] {
        let before = origin.asked().len();
        assert!(!site.get(&url, "").head.is_hit(), "{url}");
        let ttl = ttl(&site.hit(&url, ""));
        assert_eq!(ttl > 300 * DAY, is_kept, "{url}: {ttl}");
        assert!(is_kept || (0..=60).contains(&ttl), "{url}: {ttl}");
        let asked = origin.asked().len();
        // The index of apt: a request for a new one gets that of the store.
        assert!(site.get(&url, "Cache-Control: max-age=0\r\n").head.is_hit(), "{url}");
        assert!(asked > before && origin.asked().len() == asked, "{url}");
    }
}

#[test]
fn forms_of_an_index_are_stored_apart() {
    let origin = repository();
    let site = start(&origin);
    for url in ["https://npm.example.org/left-pad", "https://python.example.org/simple/plain/"] {
        for form in ["application/short", "application/long"] {
            let fields = format!("Accept: {form}\r\n");
            assert!(!site.get(url, &fields).head.is_hit(), "{url}");
            assert_eq!(site.hit(url, &fields).body, form.as_bytes(), "{url}");
        }
    }
}

#[test]
fn origin_gets_its_own_host_and_nothing_that_clients_add() {
    let origin = repository();
    let site = start(&origin);
    let fields = "Cookie: a=1\r\nAuthorization: Basic YTpi\r\n";
    let deb = "/debian/pool/main/a/a_1_all.deb";
    site.get(&format!("http://debian.example.org{deb}?x"), fields);
    site.hit(&format!("http://debian.example.org{deb}?y"), "");
    let npm = "/left-pad/-/left-pad-1.3.0.tgz";
    site.get(&format!("https://npm.example.org{npm}"), fields);
    site.hit(&format!("https://npm.example.org{npm}"), "");
    for (target, host) in [(deb, "deb.debian.org"), (npm, "registry.npmjs.org")] {
        let asked = origin.asked();
        let request = asked.iter().find(|request| request.target == target).unwrap();
        assert_eq!(request.field("host"), Some(host));
        assert_eq!((request.field("cookie"), request.field("authorization")), (None, None));
    }
    // Reports of "npm audit" pass; uploads to the other two do not.
    let post = |url: &str| site.ask("POST", url, "Content-Length: 0\r\n").head.status;
    assert_eq!(post("https://npm.example.org/-/npm/v1/security/audits"), 200);
    assert_eq!(post(&format!("{DEBIAN}/pool/x")), 404);
    assert_eq!(post("https://python.example.org/simple/"), 404);
}

#[test]
fn clients_of_other_networks_are_refused() {
    let origin = repository();
    let site = start(&origin);
    assert!(site.refuses(OTHER_CLIENT));
    assert!(origin.asked().is_empty());
}
