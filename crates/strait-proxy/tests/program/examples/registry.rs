//! Cache in front of a container registry.

use std::fs;

use super::{DAY, Example, Site, count, send, ttl};
use crate::body::Body;
use crate::origin::{Origin, send_body};

const HOST: &str = "https://registry.example.org";
/// Blob that the store sends by sendfile.
const BLOB: Body = Body::new(7, 300_000);

/// Returns the path of a blob of a repository. The last digits of its digest are `number`.
fn blob(repository: &str, number: u64) -> String {
    format!("/v2/{repository}/blobs/sha256:{number:064}")
}

/// Starts a registry. The repository "moved" has its blobs elsewhere, and "public" allows caches
/// to share them.
fn registry() -> Origin {
    Origin::new(|request, stream| {
        let target = request.target.as_str();
        let public = if target.starts_with("/v2/public/") { "public, " } else { "" };
        let fields = format!("Cache-Control: {public}max-age=60\r\n");
        if target.starts_with("/v2/moved/") {
            let location = "Location: https://blobs.example.net/x?signature=1\r\n";
            return send(request, stream, ("307 Temporary Redirect", location), b"");
        }
        if target.contains("/blobs/") {
            let mut of_body = request.clone();
            of_body.target = BLOB.target();
            return send_body(&of_body, stream, &fields);
        }
        if target == "/v2/" && request.field("authorization").is_none() {
            let challenge = "WWW-Authenticate: Bearer realm=\"https://auth.example.net/token\"\r\n";
            return send(request, stream, ("401 Unauthorized", challenge), b"");
        }
        let accept = request.field("accept").unwrap_or("none");
        send(request, stream, ("200 OK", ""), accept.as_bytes())
    })
}

fn example(origin: &Origin) -> Example {
    Example::read("registry")
        .certificate("registry", &["registry.example.org"])
        .server("http://10.0.0.7:5000", origin)
}

fn get(site: &Site, path: &str, fields: &str) -> crate::client::Response {
    site.get(&format!("{HOST}{path}"), fields)
}

#[test]
fn blobs_and_their_ranges_come_from_the_store() {
    let origin = registry();
    let site = example(&origin).start();
    let path = blob("team/app", 1);
    BLOB.assert_whole(&get(&site, &format!("{path}?ns=example.net"), "").body);
    let hit = site.hit(&format!("{HOST}{path}"), "");
    BLOB.assert_whole(&hit.body);
    assert!(ttl(&hit) > 300 * DAY);
    let asked = origin.asked().len();
    let part = get(&site, &path, "Range: bytes=1000-200999\r\n");
    assert_eq!((part.head.status, part.body.len()), (206, 200_000));
    assert!(BLOB.is(1000, &part.body) && part.head.is_hit());
    assert_eq!(site.ask("HEAD", &format!("{HOST}{path}"), "").head.len(), Some(BLOB.len));
    assert_eq!(origin.asked().len(), asked);
    assert!(origin.asked().iter().all(|request| !request.target.contains("ns=")));
}

#[test]
fn manifests_are_stored_by_form_and_tags_for_a_minute() {
    let origin = registry();
    let site = example(&origin).start();
    for (reference, is_kept) in [(format!("sha256:{:064}", 1), true), ("latest".to_owned(), false)] {
        let url = format!("{HOST}/v2/team/app/manifests/{reference}");
        for form in ["application/vnd.oci.image.index.v1+json", "application/vnd.oci.image.manifest.v1+json"]
        {
            let fields = format!("Accept: {form}\r\n");
            assert!(!site.get(&url, &fields).head.is_hit());
            let hit = site.hit(&url, &fields);
            assert_eq!(hit.body, form.as_bytes());
            assert_eq!((ttl(&hit) > 300 * DAY, ttl(&hit) > 60), (is_kept, is_kept), "{reference}");
            // docker asks by HEAD first.
            assert!(site.ask("HEAD", &url, &fields).head.is_hit());
        }
    }
}

#[test]
fn responses_to_credentials_are_stored_only_if_they_are_public() {
    let origin = registry();
    let site = example(&origin).start();
    let token = "Authorization: Bearer abc\r\n";
    let private = blob("team/app", 2);
    for turn in 1..=2 {
        assert!(!get(&site, &private, token).head.is_hit());
        assert_eq!(count(&origin, &private), turn);
    }
    assert!(!get(&site, &private, "").head.is_hit());
    let public = blob("public/app", 2);
    get(&site, &public, token);
    site.hit(&format!("{HOST}{public}"), token);
}

#[test]
fn logins_lists_and_redirections_pass_and_pushes_do_not() {
    let origin = registry();
    let site = example(&origin).start();
    let login = get(&site, "/v2/", "");
    assert_eq!(login.head.status, 401);
    assert!(login.head.field("www-authenticate").unwrap().starts_with("Bearer realm="));
    assert_eq!(get(&site, "/v2/", "Authorization: Bearer abc\r\n").head.status, 200);
    for path in ["/v2/_catalog", "/v2/team/app/tags/list", &blob("moved/app", 3)] {
        for turn in 1..=2 {
            let response = get(&site, path, "");
            let is_moved = path.starts_with("/v2/moved/");
            assert_eq!(response.head.status, if is_moved { 307 } else { 200 }, "{path}");
            assert_eq!(response.head.field("location").is_some(), is_moved);
            assert_eq!(count(&origin, path), turn, "{path}");
        }
    }
    let asked = origin.asked().len();
    for (method, path) in [
        ("POST", "/v2/team/app/blobs/uploads/"),
        ("PUT", "/v2/team/app/manifests/latest"),
        ("DELETE", &blob("team/app", 1)),
    ] {
        let refused = site.ask(method, &format!("{HOST}{path}"), "Content-Length: 0\r\n");
        assert_eq!((refused.head.status, refused.head.field("allow")), (405, Some("GET, HEAD")), "{path}");
    }
    assert_eq!(get(&site, "/", "").head.status, 404);
    assert_eq!(origin.asked().len(), asked);
}

#[test]
fn proxy_asks_for_users_where_the_example_allows_it() {
    let origin = registry();
    let example = example(&origin).put("\n#auth = ", "\nauth = ");
    let hash = bcrypt::hash_with_salt("b", 4, [7; 16]).unwrap();
    fs::write(example.authority.file("pullers"), format!("ann:{hash}\n")).unwrap();
    let site = example.start();
    let path = blob("team/app", 4);
    // ann:b
    let password = "Authorization: Basic YW5uOmI=\r\n";
    assert_eq!(get(&site, "/v2/", "").head.status, 401);
    assert_eq!(get(&site, &path, "").head.status, 401);
    BLOB.assert_whole(&get(&site, &path, password).body);
    site.hit(&format!("{HOST}{path}"), password);
    assert_eq!(get(&site, &path, "").head.status, 401);
    assert!(origin.asked().iter().all(|request| request.field("authorization").is_none()));
}
