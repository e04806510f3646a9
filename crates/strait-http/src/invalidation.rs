//! Invalidation of stored responses by unsafe requests (RFC 9111, section 4.4).

use crate::fields::Fields;
use crate::method::is_safe;
use crate::target::Uri;

/// Keys of the responses that must be validated before reuse after `method` on `target` was
/// answered with `status` and `fields`: the target, and the URIs in Location and Content-Location
/// of the same origin. A server has no authority over other origins. Empty for a safe method and
/// for an error status, since nothing was changed.
pub fn invalidated(method: &str, target: &Uri<'_>, status: u16, fields: &Fields<'_>) -> Vec<String> {
    if is_safe(method) || !(200..=399).contains(&status) {
        return Vec::new();
    }
    let mut own = String::new();
    target.write_key(&mut own);
    let named = ["location", "content-location"].into_iter().filter_map(|name| fields.one(name));
    let mut keys = vec![own];
    for key in named.filter_map(|reference| key_of_reference(target, reference)) {
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    keys
}

/// Resolves a reference against `base` and returns its key (RFC 3986, section 5.2); `None` if its
/// origin differs.
fn key_of_reference(base: &Uri<'_>, reference: &str) -> Option<String> {
    let reference = reference.split('#').next().unwrap_or_default();
    let absolute;
    let (named, path) = if has_scheme(reference) {
        let uri = Uri::parse(reference).ok()?;
        (uri, without_dots(uri.path))
    } else if reference.starts_with("//") {
        absolute = format!("{}:{reference}", base.scheme.name());
        let uri = Uri::parse(&absolute).ok()?;
        (uri, without_dots(uri.path))
    } else {
        (*base, merged(base, reference))
    };
    let mut key = String::new();
    Uri { path: &path, ..*base }.write_key(&mut key);
    named.is_same_origin(base).then_some(key)
}

/// Returns true for a reference with a scheme: a colon comes before any slash and question mark
/// (RFC 3986, section 4.2).
fn has_scheme(reference: &str) -> bool {
    let end = reference.find(['/', '?', ':']);
    end.is_some_and(|at| reference.as_bytes()[at] == b':')
}

/// Path and query of a reference without an authority.
fn merged(base: &Uri<'_>, reference: &str) -> String {
    let path = base.path.split('?').next().unwrap_or_default();
    match reference.as_bytes().first() {
        None => base.path.to_owned(),
        Some(b'?') => format!("{path}{reference}"),
        Some(b'/') => without_dots(reference),
        Some(_) => {
            let folder = path.rfind('/').map_or("/", |slash| &path[..=slash]);
            without_dots(&format!("{folder}{reference}"))
        }
    }
}

/// Removes dot segments from a path and keeps its query (RFC 3986, section 5.2.4).
fn without_dots(path: &str) -> String {
    let (path, query) = path.split_at(path.find('?').unwrap_or(path.len()));
    let mut resolved: Vec<&str> = Vec::new();
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let is_dots = matches!(segment, "." | "..");
        if segment == ".." {
            resolved.pop();
        }
        if !is_dots {
            resolved.push(segment);
        } else if segments.peek().is_none() {
            resolved.push("");
        }
    }
    format!("/{}{query}", resolved.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::tests::fields;

    fn keys(method: &str, status: u16, lines: &[(&'static str, &'static str)]) -> Vec<String> {
        invalidated(method, &Uri::parse("http://a/b/c/d;p?q").unwrap(), status, &fields(lines))
    }

    #[test]
    fn unsafe_request_invalidates_its_target_and_named_uris_of_the_same_origin() {
        let own = "http://a/b/c/d;p?q";
        assert_eq!(keys("POST", 200, &[]), [own]);
        let named = [("Location", "../x"), ("content-location", "http://A:80/y#z")];
        assert_eq!(keys("PUT", 303, &named), [own, "http://a/b/x", "http://a/y"]);
        assert_eq!(keys("DELETE", 204, &[("Location", "?q"), ("Content-Location", "")]), [own]);
        for elsewhere in
            ["http://b/x", "https://a/x", "http://a:81/x", "//b/x", "mailto:a@b", "http:x", "http://"]
        {
            assert_eq!(keys("POST", 201, &[("Location", elsewhere)]), [own], "{elsewhere}");
        }
    }

    #[test]
    fn safe_or_failed_requests_invalidate_nothing() {
        for method in ["GET", "HEAD", "OPTIONS", "TRACE"] {
            assert!(keys(method, 200, &[("Location", "/x")]).is_empty(), "{method}");
        }
        for status in [100, 400, 404, 500] {
            assert!(keys("POST", status, &[]).is_empty(), "{status}");
        }
        assert_eq!(keys("BREW", 200, &[]).len(), 1);
    }

    #[test]
    fn references_are_resolved_as_in_rfc_3986_s5_4() {
        let base = Uri::parse("http://a/b/c/d;p?q").unwrap();
        for (reference, expected) in [
            ("g", "/b/c/g"),
            ("./g", "/b/c/g"),
            ("g/", "/b/c/g/"),
            ("/g", "/g"),
            ("//a/g", "/g"),
            ("?y", "/b/c/d;p?y"),
            ("g?y", "/b/c/g?y"),
            ("#s", "/b/c/d;p?q"),
            ("g?y#s", "/b/c/g?y"),
            (";x", "/b/c/;x"),
            ("", "/b/c/d;p?q"),
            (".", "/b/c/"),
            ("./", "/b/c/"),
            ("..", "/b/"),
            ("../g", "/b/g"),
            ("../..", "/"),
            ("../../../g", "/g"),
            ("/./g", "/g"),
            ("/../g", "/g"),
            ("g.", "/b/c/g."),
            ("..g", "/b/c/..g"),
            ("./g/.", "/b/c/g/"),
            ("g;x=1/../y", "/b/c/y"),
            ("g?y/../x", "/b/c/g?y/../x"),
            ("g?a:b", "/b/c/g?a:b"),
            ("./g:h", "/b/c/g:h"),
            ("http://a/../g", "/g"),
        ] {
            let expected = format!("http://a{expected}");
            assert_eq!(key_of_reference(&base, reference), Some(expected), "{reference}");
        }
        assert_eq!(key_of_reference(&Uri::parse("http://a").unwrap(), "g").as_deref(), Some("http://a/g"));
    }
}
