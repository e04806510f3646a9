//! Cache in front of WordPress.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{DAY, Example, OTHER_CLIENT, Site, count, exchange, parse, send, ttl};
use crate::client::Client;
use crate::origin::Origin;

const HOST: &str = "https://www.example.org";
const VISITOR: &str = "Cookie: _ga=GA1.1; _ga_X=1; wordpress_test_cookie=1\r\n";
const USER: &str = "Cookie: _ga=GA1.1; wordpress_logged_in_0a1b=ann\r\n";

/// Server of WordPress. It closes connections while it fails.
struct Server {
    origin: Origin,
    fails: Arc<AtomicBool>,
}

impl Server {
    fn start() -> Self {
        let fails = Arc::new(AtomicBool::new(false));
        let is_failing = Arc::clone(&fails);
        let origin = Origin::new(move |request, stream| {
            if is_failing.load(Ordering::SeqCst) {
                return Err(std::io::ErrorKind::ConnectionReset.into());
            }
            let path = request.target.split('?').next().unwrap_or_default();
            // A plugin could give these a lifetime by mistake.
            let is_inner = path.starts_with("/wp-") && !path.starts_with("/wp-content");
            let lifetime = if is_inner { "Cache-Control: max-age=600\r\n" } else { "" };
            let tag = path.replace('/', "-");
            let fields = format!("Content-Type: text/html\r\nSurrogate-Key: all post{tag}\r\n{lifetime}");
            let page = format!("<p>{} {:?}", request.target, request.field("cookie"));
            send(request, stream, ("200 OK", &fields), page.as_bytes())
        });
        Self { origin, fails }
    }

    fn count(&self, target: &str) -> usize {
        count(&self.origin, target)
    }
}

fn example(server: &Server) -> Example {
    Example::read("wordpress")
        .certificate("www.example.org", &["www.example.org"])
        .put("10.0.0.5:8080", &server.origin.address.to_string())
        .put("10.0.0.5", "127.0.0.1")
}

fn start(server: &Server) -> Site {
    example(server).start()
}

/// Repeats a GET until the store has the response.
fn store(site: &Site, path: &str) {
    site.hit(&format!("{HOST}{path}"), VISITOR);
}

fn get(site: &Site, path: &str, fields: &str) -> crate::client::Response {
    site.get(&format!("{HOST}{path}"), fields)
}

#[test]
fn visitors_share_a_page_and_users_bypass_it() {
    let server = Server::start();
    let site = start(&server);
    let page = get(&site, "/hello/?utm_source=mail&b=2&a=1&fbclid=3", VISITOR);
    assert_eq!(String::from_utf8_lossy(&page.body), "<p>/hello/?a=1&b=2 None");
    let hit = site.hit(&format!("{HOST}/hello/?b=2&a=1&utm_medium=x"), "");
    assert!(ttl(&hit) > 500 && ttl(&hit) <= 600 && hit.body == page.body);
    assert_eq!(hit.head.field("surrogate-key"), None);
    assert_eq!(hit.head.field("strict-transport-security"), Some("max-age=31536000"));
    for turn in 1..=2 {
        let own = get(&site, "/hello/?a=1&b=2", USER);
        assert!(!own.head.is_hit() && String::from_utf8_lossy(&own.body).contains("logged_in_0a1b=ann"));
        // One request was that of the visitor.
        assert_eq!(server.count("/hello/?a=1&b=2"), 1 + turn);
    }
    assert!(get(&site, "/hello/?a=1&b=2", VISITOR).head.is_hit());
    for cookie in ["wp-postpass_0a=1", "comment_author_0a=ann", "woocommerce_items_in_cart=1"] {
        let status = get(&site, "/hello/?a=1&b=2", &format!("Cookie: {cookie}\r\n"));
        assert!(!status.head.is_hit(), "{cookie}");
    }
}

#[test]
fn purge_by_tag_removes_a_page_and_leaves_the_others() {
    let server = Server::start();
    let site = start(&server);
    for path in ["/one", "/two"] {
        store(&site, path);
    }
    let url = format!("{HOST}/");
    let purge = |fields: &str| site.ask("PURGE", &url, fields).head.status;
    assert_eq!(purge("Surrogate-Key: post-one\r\n"), 200);
    assert!(!get(&site, "/one", VISITOR).head.is_hit() && get(&site, "/two", VISITOR).head.is_hit());
    store(&site, "/one");
    assert_eq!(purge("Surrogate-Key: all\r\n"), 200);
    assert!(!get(&site, "/one", VISITOR).head.is_hit() && !get(&site, "/two", VISITOR).head.is_hit());
    // Only the server may purge.
    store(&site, "/one");
    let other = Client::connect_from(OTHER_CLIENT, site.secure()).unwrap();
    let stream = site.tls_on("www.example.org", other.stream);
    let request = "PURGE /one HTTP/1.1\r\nHost: www.example.org\r\nConnection: close\r\n\r\n";
    assert_eq!(parse(&exchange(stream, request).unwrap()).head.status, 403);
    assert!(get(&site, "/one", VISITOR).head.is_hit());
}

#[test]
fn stale_page_answers_while_the_server_fails() {
    let server = Server::start();
    // With this key, a page answers for a minute without the server.
    let site = example(&server).put("\nstale_while_revalidate = 60\n", "\n").start();
    store(&site, "/one");
    let url = format!("{HOST}/one");
    assert_eq!(site.ask("PURGE", &url, "Soft-Purge: 1\r\nSurrogate-Key: post-one\r\n").head.status, 200);
    server.fails.store(true, Ordering::SeqCst);
    let stale = get(&site, "/one", VISITOR);
    assert_eq!((stale.head.status, String::from_utf8_lossy(&stale.body).as_ref()), (200, "<p>/one None"));
    assert!(get(&site, "/other", VISITOR).head.status >= 500);
}

#[test]
fn administration_is_not_stored_and_files_are() {
    let server = Server::start();
    let site = start(&server);
    for path in [
        "/wp-admin/",
        "/wp-admin/admin-ajax.php?action=x",
        "/wp-json/wp/v2/posts",
        "/wp-cron.php",
        "/wp-login.php",
    ] {
        for turn in 1..=2 {
            assert!(!get(&site, path, VISITOR).head.is_hit(), "{path}");
            assert_eq!(server.count(path), turn, "{path}");
        }
    }
    let path = "/wp-content/themes/a/style.css?ver=6.8";
    get(&site, path, USER);
    let hit = site.hit(&format!("{HOST}{path}"), USER);
    assert!(ttl(&hit) > 60 && ttl(&hit) <= DAY && String::from_utf8_lossy(&hit.body).ends_with("None"));
    assert_eq!(get(&site, "/xmlrpc.php", "").head.status, 403);
    assert_eq!(server.count("/xmlrpc.php"), 0);
}

#[test]
fn attempts_to_log_in_are_limited() {
    let server = Server::start();
    let site = start(&server);
    let statuses: Vec<_> = (0..14).map(|_| get(&site, "/wp-login.php", "").head.status).collect();
    assert_eq!((statuses[0], statuses.contains(&429)), (200, true), "{statuses:?}");
    assert_eq!(get(&site, "/", "").head.status, 200);
    let plain = site.get("http://www.example.org/one?a", "");
    assert_eq!(plain.head.status, 308);
    assert!(plain.head.field("location").unwrap().starts_with("https://www.example.org"));
}
