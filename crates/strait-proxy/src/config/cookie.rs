//! Cookies of requests (RFC 6265, section 5.4).

use strait_http::head::Request;

/// Iterates over the values of the cookies with a name. There can be several, as a page of another
/// subdomain can set one.
pub(crate) fn cookies<'r>(request: &'r Request<'_>, name: &'r str) -> impl Iterator<Item = &'r [u8]> {
    let all = request.fields.all("cookie").flat_map(|field| field.value.split(|byte| *byte == b';'));
    all.filter_map(|cookie| cookie.trim_ascii().strip_prefix(name.as_bytes())?.strip_prefix(b"="))
}
