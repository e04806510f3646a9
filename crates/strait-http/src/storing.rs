//! Storing of responses by a shared cache (RFC 9111, section 3).

use crate::cache_control::{OfRequest, OfResponse, Scope};
use crate::conditional::validators;
use crate::fields::{Field, Fields};
use crate::forward::forwarded_fields;
use crate::freshness::{Times, expires_applies, is_heuristically_cacheable};
use crate::reuse::forbids_stale;
use crate::vary;

/// Reason for not storing a response, for Cache-Status (RFC 9211) and logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotStored {
    /// The method is not GET.
    Method,
    /// Responses with this status are not stored.
    Status,
    /// The request forbids it.
    RequestNoStore,
    /// The response forbids it.
    NoStore,
    /// The response is private.
    Private,
    /// The response sets a cookie, which belongs to one user.
    SetCookie,
    /// The request has credentials, and the response does not allow storing for others.
    Authorization,
    /// Vary is `*` or invalid.
    VaryAll,
    /// The request has a cookie, and the response gives no lifetime: it may depend on the cookie.
    Cookie,
    /// The response has no sign of cacheability.
    NotCacheable,
}

impl NotStored {
    /// Token of the reason.
    pub fn name(self) -> &'static str {
        match self {
            Self::Method => "method",
            Self::Status => "status",
            Self::RequestNoStore => "request-no-store",
            Self::NoStore => "no-store",
            Self::Private => "private",
            Self::SetCookie => "set-cookie",
            Self::Authorization => "authorization",
            Self::VaryAll => "vary-all",
            Self::Cookie => "cookie",
            Self::NotCacheable => "not-cacheable",
        }
    }
}

/// Storing policy of the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Error statuses to store.
    pub errors: Vec<u16>,
    /// True if responses with Set-Cookie may be stored.
    pub set_cookie: bool,
    /// True if the proxy writes the client's address into requests: a response that varies with it
    /// is for one request alone.
    pub sends_client: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self { errors: vec![404, 410, 414], set_cookie: false, sends_client: false }
    }
}

/// Returns true for an error that is never stored: one request's fields, credentials or rate cause
/// it, and a request without them would get another response. One oversized or malformed field
/// would otherwise deny the resource to every client.
pub fn depends_on_request(status: u16) -> bool {
    matches!(status, 400..=402 | 406..=408 | 411..=413 | 415..=426 | 428 | 429 | 431)
}

/// Properties of a request that affect storing.
#[derive(Clone, Copy, Debug)]
pub struct StorableRequest<'a, 'b> {
    /// Request method.
    pub method: &'a str,
    /// Request fields.
    pub fields: &'a Fields<'b>,
    /// Cache directives of the request.
    pub directives: OfRequest,
    /// True if the request to the origin has a Range.
    pub is_range: bool,
    /// True if it has a cookie that is not part of the key.
    pub has_other_cookie: bool,
}

/// Checks that a response may be stored.
///
/// # Errors
/// The first rule that forbids storing.
pub fn may_store(
    policy: &Policy,
    request: &StorableRequest<'_, '_>,
    status: u16,
    fields: &Fields<'_>,
    directives: &OfResponse,
) -> Result<(), NotStored> {
    let refuse = |refused, why| if refused { Err(why) } else { Ok(()) };
    refuse(request.method != "GET", NotStored::Method)?;
    // Without Range the response might differ, in particular a 416.
    refuse(request.is_range && !matches!(status, 200 | 206), NotStored::Status)?;
    refuse(is_error(status) && !policy.stores_error(status), NotStored::Status)?;
    refuse(!is_understood(status) && (directives.must_understand || !is_final(status)), NotStored::Status)?;
    refuse(request.directives.no_store, NotStored::RequestNoStore)?;
    // RFC 9111 s5.2.2.3: no-store with must-understand is for caches that do not implement
    // must-understand.
    refuse(directives.no_store && !directives.must_understand, NotStored::NoStore)?;
    refuse(directives.private == Scope::All, NotStored::Private)?;
    // A private field is not stored, so its cookie does not count.
    let sets_cookie = fields.has("set-cookie")
        && storable_fields(fields, directives).any(|field| field.name.eq_ignore_ascii_case("set-cookie"));
    refuse(sets_cookie && !policy.set_cookie, NotStored::SetCookie)?;
    // RFC 9111 s3.5.
    let is_for_all = directives.must_revalidate || directives.public || directives.s_maxage.is_some();
    refuse(request.fields.has("authorization") && !is_for_all, NotStored::Authorization)?;
    refuse(!vary::is_selective(fields), NotStored::VaryAll)?;
    let is_explicit = directives.public
        || directives.max_age.is_some()
        || directives.s_maxage.is_some()
        || expires_applies(fields, directives);
    // RFC 9111 allows it, but an origin that sets a cookie and gives no cache directive does not
    // intend it for others.
    let is_heuristic = is_heuristically_cacheable(status) && !fields.has("set-cookie");
    refuse(!is_explicit && !is_heuristic, NotStored::NotCacheable)?;
    // Pages for a logged-in user often have neither Cache-Control nor Vary. nginx stores nothing
    // without an explicit lifetime, Varnish nothing for a request with Cookie.
    refuse(!is_explicit && request.has_other_cookie, NotStored::Cookie)
}

impl Policy {
    /// Returns true if a stored response of that status may still be used. `sets_cookie`: it has a
    /// Set-Cookie; `varies_with_client`: its Vary names a field that has the client's address.
    pub fn allows(&self, status: u16, sets_cookie: bool, varies_with_client: bool) -> bool {
        (!is_error(status) || self.stores_error(status))
            && (!sets_cookie || self.set_cookie)
            && !(varies_with_client && self.sends_client)
    }

    fn stores_error(&self, status: u16) -> bool {
        self.errors.contains(&status) && !depends_on_request(status)
    }
}

fn is_error(status: u16) -> bool {
    status >= 400
}

/// Returns true if a storable response is useful: it is fresh for some time, may be used stale, or
/// can be validated. Any other would serve only clients that accept any age, at the full cost of
/// storing.
pub fn is_useful(fields: &Fields<'_>, directives: &OfResponse, times: &Times) -> bool {
    let may_be_stale = directives.no_cache == Scope::None && !forbids_stale(directives);
    let has_stale = directives.stale_while_revalidate.is_some() || directives.stale_if_error.is_some();
    times.fresh_for(times.received) > 0 || (may_be_stale && has_stale) || validators(fields).next().is_some()
}

/// Returns the fields to store: the forwarded ones (RFC 9111, section 3.1) except private ones
/// (section 5.2.2.7).
pub fn storable_fields<'s, 'b>(
    fields: &'s Fields<'b>,
    directives: &'s OfResponse,
) -> impl Iterator<Item = &'s Field<'b>> {
    let private = match &directives.private {
        Scope::Fields(names) => names.as_slice(),
        Scope::None | Scope::All => &[],
    };
    forwarded_fields(fields)
        .filter(move |field| !private.iter().any(|name| name.eq_ignore_ascii_case(field.name)))
}

/// Returns true for statuses with cache rules implemented here. 304 is not one of them, because it
/// updates a stored response.
fn is_understood(status: u16) -> bool {
    matches!(status, 200 | 203 | 204 | 206 | 300 | 301 | 302 | 303 | 307 | 308 | 404 | 405 | 410 | 414 | 501)
}

/// Returns true for a final status that a cache may store without understanding it. 201, 202, 205,
/// 207, 208 and 226 answer one request only: a field such as A-IM (RFC 3229) decides their content.
fn is_final(status: u16) -> bool {
    (200..=599).contains(&status) && !matches!(status, 201 | 202 | 205 | 207 | 208 | 226 | 304)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::tests::fields;

    fn lines(text: &str) -> Fields<'_> {
        fields(&text.split('|').filter_map(|line| line.split_once(": ")).collect::<Vec<_>>())
    }

    fn stores(
        method: &str,
        request: &'static str,
        status: u16,
        response: &'static str,
    ) -> Result<(), NotStored> {
        let (request, response) = (lines(request), lines(response));
        let is_range = request.has("range");
        let has_other_cookie = request.has("cookie");
        let directives = OfRequest::of(&request);
        let storable = StorableRequest { method, fields: &request, directives, is_range, has_other_cookie };
        may_store(&Policy::default(), &storable, status, &response, &OfResponse::of(&response))
    }

    #[test]
    fn policy_allows_stored_errors_and_cookies() {
        let policy =
            |errors: &[u16], set_cookie| Policy { errors: errors.to_vec(), set_cookie, ..Policy::default() };
        let allows = |policy: Policy, status, sets_cookie| policy.allows(status, sets_cookie, false);
        assert!(allows(Policy::default(), 200, false) && allows(Policy::default(), 404, false));
        assert!(!allows(policy(&[410], false), 404, false) && !allows(policy(&[416], false), 416, false));
        assert!(!allows(policy(&[], false), 200, true) && allows(policy(&[], true), 200, true));
        let sending = Policy { sends_client: true, ..Policy::default() };
        assert!(Policy::default().allows(200, false, true) && allows(sending.clone(), 200, false));
        assert!(!sending.allows(200, false, true));
    }

    #[test]
    fn rules_of_section_3() {
        for (method, request, status, response, expected) in [
            ("GET", "", 200, "", Ok(())),
            ("GET", "", 206, "", Ok(())),
            ("GET", "", 404, "", Ok(())),
            ("POST", "", 200, "Cache-Control: max-age=1", Err(NotStored::Method)),
            ("get", "", 200, "", Err(NotStored::Method)),
            ("GET", "", 304, "Cache-Control: max-age=1", Err(NotStored::Status)),
            ("GET", "", 103, "Cache-Control: max-age=1", Err(NotStored::Status)),
            ("GET", "", 302, "", Err(NotStored::NotCacheable)),
            ("GET", "", 302, "Cache-Control: max-age=0", Ok(())),
            ("GET", "", 302, "Expires: 0", Ok(())),
            ("GET", "", 299, "Cache-Control: public", Ok(())),
            ("GET", "A-IM: feed", 226, "Cache-Control: max-age=60", Err(NotStored::Status)),
            ("GET", "", 202, "Cache-Control: max-age=60", Err(NotStored::Status)),
            ("GET", "", 299, "Cache-Control: public, must-understand", Err(NotStored::Status)),
            ("GET", "", 200, "Cache-Control: no-store", Err(NotStored::NoStore)),
            ("GET", "", 200, "Cache-Control: no-store, must-understand", Ok(())),
            ("GET", "Cache-Control: no-store", 200, "", Err(NotStored::RequestNoStore)),
            ("GET", "", 200, "Cache-Control: private", Err(NotStored::Private)),
            ("GET", "", 200, "Cache-Control: private=\"set-cookie\"", Ok(())),
            ("GET", "Authorization: x", 200, "Cache-Control: max-age=1", Err(NotStored::Authorization)),
            ("GET", "Authorization: x", 200, "Cache-Control: s-maxage=1", Ok(())),
            ("GET", "Authorization: x", 200, "Cache-Control: public", Ok(())),
            ("GET", "Authorization: x", 200, "Cache-Control: must-revalidate", Ok(())),
            ("GET", "", 200, "Vary: accept, *", Err(NotStored::VaryAll)),
            ("GET", "", 200, "CDN-Cache-Control: no-store|Cache-Control: max-age=1", Err(NotStored::NoStore)),
        ] {
            assert_eq!(
                stores(method, request, status, response),
                expected,
                "{method} {request} {status} {response}"
            );
        }
    }

    #[test]
    fn errors_caused_by_request_fields_are_not_stored() {
        let explicit = "Cache-Control: public, max-age=60";
        for status in 400..=599 {
            let expected = if matches!(status, 404 | 410 | 414) { Ok(()) } else { Err(NotStored::Status) };
            assert_eq!(stores("GET", "", status, explicit), expected, "{status}");
        }
        let (request, response) = (lines(""), lines(explicit));
        let storable = StorableRequest {
            method: "GET",
            fields: &request,
            directives: OfRequest::default(),
            is_range: false,
            has_other_cookie: false,
        };
        let policy = Policy { errors: (400..600).collect(), ..Policy::default() };
        let may = |status| may_store(&policy, &storable, status, &response, &OfResponse::of(&response));
        for (status, expected) in
            [(403, true), (503, true), (400, false), (412, false), (416, false), (417, false), (431, false)]
        {
            assert_eq!(may(status).is_ok(), expected, "{status}");
        }
    }

    #[test]
    fn response_to_a_range_request_is_stored_only_with_200_or_206() {
        for (status, expected) in [
            (200, Ok(())),
            (206, Ok(())),
            (301, Err(NotStored::Status)),
            (404, Err(NotStored::Status)),
            (416, Err(NotStored::Status)),
        ] {
            let stored = stores("GET", "Range: bytes=0-1", status, "Cache-Control: max-age=60");
            assert_eq!(stored, expected, "{status}");
        }
    }

    #[test]
    fn response_with_set_cookie_is_not_stored() {
        for (directives, expected) in [
            ("max-age=60", Err(NotStored::SetCookie)),
            ("public, s-maxage=60", Err(NotStored::SetCookie)),
            ("max-age=60, no-cache=\"set-cookie\"", Err(NotStored::SetCookie)),
            ("max-age=60, private=\"Set-Cookie\"", Ok(())),
        ] {
            let response = fields(&[("Cache-Control", directives), ("set-cookie", "a=b")]);
            let request = lines("");
            let storable = StorableRequest {
                method: "GET",
                fields: &request,
                directives: OfRequest::default(),
                is_range: false,
                has_other_cookie: false,
            };
            let own = OfResponse::of(&response);
            assert_eq!(
                may_store(&Policy::default(), &storable, 200, &response, &own),
                expected,
                "{directives}"
            );
            let allowed = Policy { set_cookie: true, ..Policy::default() };
            assert_eq!(may_store(&allowed, &storable, 200, &response, &own), Ok(()), "{directives}");
        }
    }

    #[test]
    fn response_that_serves_no_request_is_of_no_use() {
        for (response, expected) in [
            ("Cache-Control: max-age=1", true),
            ("Cache-Control: max-age=0", false),
            ("Cache-Control: max-age=5|Age: 5", false),
            ("Cache-Control: max-age=0|ETag: \"a\"", true),
            ("Cache-Control: max-age=0, stale-if-error=1", true),
            ("Cache-Control: max-age=0, stale-while-revalidate=1", true),
            ("Cache-Control: no-cache, stale-while-revalidate=1", false),
            ("Cache-Control: max-age=0, must-revalidate, stale-if-error=1", false),
            ("", false),
        ] {
            let response_fields = lines(response);
            let directives = OfResponse::of(&response_fields);
            let times = Times::of(200, &response_fields, &directives, 1000, 1000);
            assert_eq!(is_useful(&response_fields, &directives, &times), expected, "{response}");
        }
    }

    #[test]
    fn private_and_connection_fields_are_not_kept() {
        let response = lines(
            "Cache-Control: private=\"X-User, set-cookie\"|x-user: 1|Set-Cookie: a|Connection: b|B: 1|C: 2",
        );
        let directives = OfResponse::of(&response);
        let names: Vec<_> = storable_fields(&response, &directives).map(|field| field.name).collect();
        assert_eq!(names, ["Cache-Control", "C"]);
    }
}
