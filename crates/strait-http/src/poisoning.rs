//! Request fields that change the responses of real origins although Vary rarely names them.
//!
//! If the cache ignored them, one client could choose the response for all others (web cache
//! poisoning). Each gets one of two rules: [`is_keyed`] fields become part of the key of the
//! response (`vary`), and [`bypasses_cache`] fields bypass the cache (the proxy). This module does
//! not decide about storing. `docs/internals/proxy.md` has the table of all fields.

use crate::chunked::is_token;
use crate::fields::{Fields, Names, parameter, split_list};
use crate::forward::is_of_connection;
use crate::forwarded::is_x_forwarded;

/// Fields that replace the method or the target of a request (Symfony, Laravel, Rails, Express;
/// IIS, Zend), or select an internal step of a framework.
const BYPASSING: Names<21> = Names::new([
    "translate",
    "x-accel-mapping",
    "x-astro-path",
    "x-envoy-original-path",
    "x-http-method",
    "x-http-method-override",
    "x-invoke-path",
    "x-invoke-query",
    "x-invoke-status",
    "x-matched-path",
    "x-method-override",
    "x-middleware-prefetch",
    "x-middleware-subrequest",
    "x-now-route-matches",
    "x-original-uri",
    "x-original-url",
    "x-prerender-revalidate",
    "x-react-router-prerender-data",
    "x-react-router-spa-mode",
    "x-rewrite-url",
    "x-sendfile-type",
]);

/// Fields with the host, scheme or path that a client used, in addition to X-Forwarded-*; and
/// fields by which scripts, browsers and surrogates request another form of a page
/// (Surrogate-Capability: one with ESI tags, which a browser does not process). Gateways of mobile
/// browsers send the browser's User-Agent in fields of their own.
const KEYED: Names<58> = Names::new([
    "cf-visitor",
    "cloudfront-forwarded-proto",
    "device-stock-ua",
    "forwarded",
    "front-end-https",
    "hx-boosted",
    "hx-current-url",
    "hx-history-restore-request",
    "hx-prompt",
    "hx-request",
    "hx-target",
    "hx-trigger",
    "hx-trigger-name",
    "negotiate",
    "next-router-prefetch",
    "next-router-segment-prefetch",
    "next-router-state-tree",
    "next-url",
    "purpose",
    "rsc",
    "save-data",
    "sec-purpose",
    "surrogate-capability",
    "turbo-frame",
    "wicket-ajax",
    "wicket-ajax-baseurl",
    "x-arr-ssl",
    "x-bolt-phone-ua",
    "x-device-user-agent",
    "x-host",
    "x-host-override",
    "x-http-host-override",
    "x-https",
    "x-inertia",
    "x-inertia-partial-component",
    "x-inertia-partial-data",
    "x-inertia-partial-except",
    "x-inertia-reset",
    "x-livewire",
    "x-moz",
    "x-nextjs-data",
    "x-nuxt-no-ssr",
    "x-operamini-phone-ua",
    "x-original-host",
    "x-original-user-agent",
    "x-pjax",
    "x-pjax-container",
    "x-purpose",
    "x-requested-with",
    "x-scheme",
    "x-script-name",
    "x-skyfire-phone",
    "x-ucbrowser-device-ua",
    "x-up-mode",
    "x-up-target",
    "x-up-version",
    "x-url-scheme",
    "x-wap-profile",
]);

/// Returns true if a request with such a field bypasses the cache. CGI, WSGI, Rack and PHP read
/// `X_Forwarded_Host` as X-Forwarded-Host, so a name with an underscore may stand for any of these
/// fields.
pub fn bypasses_cache(name: &str) -> bool {
    name.contains('_') || BYPASSING.has(name)
}

/// Returns true if the field is part of the key of every response to a request that has it.
/// X-Forwarded-For is not, since each client has its own value, while a stored response is for all
/// clients.
pub fn is_keyed(name: &str) -> bool {
    (is_x_forwarded(name) && !name.eq_ignore_ascii_case("x-forwarded-for")) || KEYED.has(name)
}

/// Request fields that the cache evaluates itself, or that concern the transfer of the message. The
/// request for a stored response omits or replaces them.
const OF_CACHE: [&str; 12] = [
    "a-im",
    "cache-control",
    "expect",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "max-forwards",
    "pragma",
    "range",
    "via",
];

/// Reason why a field cannot be added to the key of responses; `None` if it can.
pub fn why_no_key(name: &str) -> Option<&'static str> {
    let is = |other: &str| name.eq_ignore_ascii_case(other);
    if !is_token(name.as_bytes()) {
        Some(NO_NAME)
    } else if is("host") {
        Some("the host is part of every key")
    } else if bypasses_cache(name) {
        Some("requests with this field bypass the cache already")
    } else if is("forwarded") || is_x_forwarded(name) {
        Some("the setting `forwarded` governs this field")
    } else if is_of_connection(name) || OF_CACHE.into_iter().any(is) {
        Some("the origin of a stored response does not receive this field")
    } else {
        None
    }
}

/// Reason why requests with a field cannot bypass the cache; `None` if they can.
pub fn why_no_bypass(name: &str) -> Option<&'static str> {
    if !is_token(name.as_bytes()) {
        Some(NO_NAME)
    } else if name.eq_ignore_ascii_case("host") {
        Some("every request has this field, so nothing would be stored")
    } else {
        None
    }
}

const NO_NAME: &str = "this is not a field name";

/// Hosts and schemes in Forwarded (RFC 7239, section 4), without the addresses; empty if there are
/// only addresses. Each element ends with a comma, because an origin may read only the first or the
/// last.
pub(crate) fn forwarded(request_fields: &Fields<'_>) -> String {
    let mut text = String::new();
    for field in request_fields.all("forwarded") {
        let Some(line) = field.text() else {
            // The value is not text, but an origin might accept it. Escape it, so that it differs
            // from every other value.
            text.extend([";", &*field.value.escape_ascii().to_string(), ";,"]);
            continue;
        };
        for element in split_list(line) {
            element.split(';').for_each(|pair| push_pair(&mut text, pair));
            text.push(',');
        }
    }
    if text.bytes().all(|byte| byte == b',') { String::new() } else { text }
}

/// Writes a parameter of Forwarded, unless it is an address.
fn push_pair(text: &mut String, pair: &str) {
    let (name, value) = parameter(pair.trim_matches([' ', '\t']));
    if ["for", "by"].into_iter().any(|own| own.eq_ignore_ascii_case(name)) {
        return;
    }
    let (name, value) = (name.to_ascii_lowercase(), value.unwrap_or_default().to_ascii_lowercase());
    text.extend([&*name, "=", &*value, ";"]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::tests::fields;

    #[test]
    fn host_fields_are_keyed_and_addresses_are_not() {
        for (name, expected) in [
            ("X-Forwarded-Host", true),
            ("x-forwarded-anything", true),
            ("X-Requested-With", true),
            ("Forwarded", true),
            ("Surrogate-Capability", true),
            ("Save-Data", true),
            ("X-Forwarded-For", false),
            ("Cookie", false),
            ("X-Forwarded", false),
        ] {
            assert_eq!(is_keyed(name), expected, "{name}");
        }
        assert!(bypasses_cache("X-HTTP-Method-Override") && !bypasses_cache("X-Forwarded-Host"));
    }

    #[test]
    fn only_fields_sent_to_the_origin_can_be_keys() {
        for name in ["X-Tenant", "Cookie", "accept-language", "X-Requested-With", "Authorization"] {
            assert_eq!(why_no_key(name), None, "{name}");
        }
        for name in [
            "Host",
            "range",
            "If-Range",
            "If-None-Match",
            "Expect",
            "Cache-Control",
            "TE",
            "Connection",
            "Content-Length",
            "Proxy-Authorization",
            "X_Tenant",
            "X-Original-URL",
            "X-Forwarded-For",
            "Forwarded",
            "",
            "a b",
            "a:",
            "\u{e9}",
        ] {
            assert!(why_no_key(name).is_some(), "{name}");
        }
        for (name, expected) in [
            ("Range", true),
            ("Cookie", true),
            ("X_Debug", true),
            ("host", false),
            ("", false),
            ("a b", false),
        ] {
            assert_eq!(why_no_bypass(name).is_none(), expected, "{name}");
        }
    }

    #[test]
    fn forwarded_is_compared_without_addresses() {
        let of = |value| forwarded(&fields(&[("Forwarded", value)]));
        assert_eq!(of("for=a, for=b;by=c"), "");
        assert_eq!(of("for=a;Host=\"B\", for=c; proto=https"), "host=b;,proto=https;,");
        assert_ne!(of("host=a;host=b"), of("host=a, host=b"));
        assert_ne!(of("for=c, host=a"), of("host=a, for=c"));
        assert_ne!(of("host=a"), of("host=a, for=c"));
        assert_ne!(of("host=\"a;,host=b\""), of("host=a, host=b"));
        assert_ne!(of("host=a"), of("host=b"));
    }
}
