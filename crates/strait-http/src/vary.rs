//! Selection among stored responses by Vary (RFC 9111, section 4.1).

use smallvec::SmallVec;

use crate::chunked::is_token;
use crate::cookies::{self, KEY_PREFIX};
use crate::fields::{Fields, lower, split_list};
use crate::poisoning;

/// Limit of the fields in Vary. A response with more is not stored.
pub const NAMES_MAX: usize = 16;

/// Name in a text of [`Variant`] for the Range of a request, if the response answers that Range
/// alone. It is no token, so Vary cannot name it.
const OF_RANGE: &str = "range/part";

/// Memory for a name and its value in a text of [`Variant`], of usual lengths.
const TEXT_BYTES: usize = 48;

/// Values of the request fields that a response varies on, as text. Requests with equal texts may
/// get the same response.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Variant(String);

impl Variant {
    /// Variant of a request for a response with the given Vary; `None` if the response varies on
    /// everything or on too many fields. The fields in `keys`, in lower case, are part of every
    /// key: a request without one has another variant than a request with it. `cookie/NAME` is the
    /// cookie of that name.
    pub fn of(vary: &Fields<'_>, request: &Fields<'_>, keys: &[String]) -> Option<Self> {
        Self::with(vary, request, keys, None)
    }

    /// Like [`Self::of`], for a part that answers only requests with the same Range.
    pub fn of_part(vary: &Fields<'_>, request: &Fields<'_>, keys: &[String]) -> Option<Self> {
        Self::with(vary, request, keys, Some(OF_RANGE))
    }

    fn with(vary: &Fields<'_>, request: &Fields<'_>, keys: &[String], further: Option<&str>) -> Option<Self> {
        if !is_selective(vary) {
            return None;
        }
        let mut names = SmallVec::<[&str; 8]>::new();
        names.extend(further);
        for name in vary.elements("vary") {
            names.push(name);
        }
        for name in implied(vary) {
            names.push(name);
        }
        for name in keyed(request) {
            names.push(name);
        }
        for name in keys {
            names.push(name);
        }
        names.sort_unstable_by(|one, other| lower(one).cmp(lower(other)));
        names.dedup_by(|one, other| one.eq_ignore_ascii_case(other));
        if names.len() > NAMES_MAX + keys.len() {
            return None;
        }
        let mut text = String::with_capacity(names.len() * TEXT_BYTES);
        for name in names {
            let at = text.len();
            text.push_str(name);
            text[at..].make_ascii_lowercase();
            if let Some(value) = normalised(&text[at..], request) {
                text.push(':');
                text.extend(value.into_iter().map(char::from));
            }
            text.push('\n');
        }
        Some(Self(text))
    }

    /// Text of the variant, as stored.
    pub fn text(&self) -> &str {
        &self.0
    }
}

/// Request fields that a response depends on without naming them in Vary, as its own fields show.
/// Many origins compress, apply Prefer, or allow the requesting Origin without a Vary.
pub fn implied(response: &Fields<'_>) -> impl Iterator<Item = &'static str> {
    let is_coded = response.elements("content-encoding").any(|it| !it.eq_ignore_ascii_case("identity"));
    let is_for_origin = response.all("access-control-allow-origin").any(|field| field.value != b"*");
    let all = [
        (is_coded, "accept-encoding"),
        (is_for_origin, "origin"),
        (response.has("preference-applied"), "prefer"),
    ];
    all.into_iter().filter_map(|(is_implied, name)| is_implied.then_some(name))
}

/// Returns true if a request has the values that a text of [`Variant`] names, and no other field
/// that is part of the key of requests that have it.
pub fn matches_variant(request: &Fields<'_>, variant: &str) -> bool {
    lines(variant).all(|(name, value)| normalised(name, request).as_deref() == value.map(str::as_bytes))
        && has_keyed_of(variant, request)
}

/// Returns true if a text of [`Variant`] names all fields in `keys`. A text from before a change of
/// the keys may lack some, and then covers requests that differ now.
pub fn has_keys(variant: &str, keys: &[String]) -> bool {
    keys.iter().all(|key| names(variant, key))
}

/// Returns true if a text of [`Variant`] names all fields of the request that are part of the key
/// of requests that have them.
pub fn has_keyed_of(variant: &str, request: &Fields<'_>) -> bool {
    keyed(request).all(|name| names(variant, name))
}

/// Returns true if a text of [`Variant`] is for requests with one Range alone.
pub fn is_of_range(variant: &str) -> bool {
    names(variant, OF_RANGE)
}

/// Returns true if a text of [`Variant`] names a field that identifies a user: the response is not
/// the same for all clients.
pub fn is_of_user(variant: &str) -> bool {
    let is_of_user = |name: &str| matches!(name, "authorization" | "cookie") || name.starts_with(KEY_PREFIX);
    lines(variant).any(|(name, _)| is_of_user(name))
}

/// Returns true if a text of [`Variant`] is for requests without any key field: neither a built-in
/// one nor one in `keys`, nor a Range.
pub fn is_plain(variant: &str, keys: &[String]) -> bool {
    let is_key =
        |name: &str| name == OF_RANGE || poisoning::is_keyed(name) || keys.iter().any(|key| key == name);
    lines(variant).all(|(name, value)| value.is_none_or(str::is_empty) || !is_key(name))
}

/// Returns true if a request can match both texts of [`Variant`].
pub fn overlap(one: &str, other: &str) -> bool {
    !excludes(one, other) && !excludes(other, one)
}

/// Returns true if a field of the text has another value in `other`, or is a key field that `other`
/// does not name.
fn excludes(variant: &str, other: &str) -> bool {
    let is_key = |name: &str, value: Option<&str>| {
        value.is_some_and(|value| !value.is_empty() || name != "forwarded") && poisoning::is_keyed(name)
    };
    lines(variant).any(|(name, value)| match lines(other).find(|(own, _)| *own == name) {
        Some((_, other)) => other != value,
        None => is_key(name, value),
    })
}

/// Fields that a text of [`Variant`] names, with their values in the request.
fn lines(variant: &str) -> impl Iterator<Item = (&str, Option<&str>)> {
    variant.lines().map(|line| line.split_once(':').map_or((line, None), |(name, value)| (name, Some(value))))
}

fn names(variant: &str, name: &str) -> bool {
    lines(variant).any(|(own, _)| own.eq_ignore_ascii_case(name))
}

/// Names of the request's fields that are part of the key of requests that have them. Forwarded
/// with addresses alone is left out: each client has its own.
fn keyed<'s>(request: &'s Fields<'_>) -> impl Iterator<Item = &'s str> {
    let is_keyed = move |name: &&str| {
        let is_forwarded = || name.eq_ignore_ascii_case("forwarded");
        poisoning::is_keyed(name) && !(is_forwarded() && poisoning::forwarded(request).is_empty())
    };
    request.iter().map(|field| field.name).filter(is_keyed)
}

/// Returns true if Vary is readable and names request fields only, or is absent.
pub(crate) fn is_selective(vary: &Fields<'_>) -> bool {
    let is_name = |name: &str| name != "*" && is_token(name.as_bytes());
    vary.all("vary").all(|line| line.text().is_some_and(|text| split_list(text).all(is_name)))
}

/// Normalised value of a field, ASCII without line feeds; `None` if it is absent, which differs
/// from empty: without Accept-Encoding any coding is acceptable, with an empty one none (RFC 9110,
/// section 12.5.3). Lists of preferences are in lower case without spaces (RFC 9110, section 12.5),
/// unless an origin could read them in another way: if they have bytes other than printable ASCII,
/// strings, or spaces within a word.
/// Codings and character sets are sorted. Languages are not, since many servers prefer the first.
/// Several lines of other fields equal one (section 5.3).
fn normalised(name: &str, request: &Fields<'_>) -> Option<SmallVec<[u8; 128]>> {
    let mut value = SmallVec::new();
    let name = if name == OF_RANGE { "range" } else { name };
    if let Some(cookie) = name.strip_prefix(KEY_PREFIX) {
        let mut all = cookies::all_like(request, cookie).peekable();
        all.peek()?;
        push_joined(&mut value, all, b"; ");
        return Some(value);
    }
    match name {
        "forwarded" => value.extend_from_slice(poisoning::forwarded(request).as_bytes()),
        "accept" | "accept-charset" | "accept-encoding" | "accept-language"
            if request.all(name).all(|line| is_plain_list(line.value)) =>
        {
            push_preferences(&mut value, name, request);
        }
        // Lines of cookies are joined like that on the way to the origin.
        "cookie" => push_joined(&mut value, request.all(name).map(|field| field.value), b"; "),
        _ => push_joined(&mut value, request.all(name).map(|field| field.value), b", "),
    }
    (!value.is_empty() || request.has(name)).then_some(value)
}

fn push_joined<'b>(value: &mut SmallVec<[u8; 128]>, parts: impl Iterator<Item = &'b [u8]>, separator: &[u8]) {
    for (index, part) in parts.enumerate() {
        value.extend_from_slice(if index > 0 { separator } else { b"" });
        value.extend(part.escape_ascii());
    }
}

/// Returns true if a line is a list of words with parameters, and has spaces only next to commas,
/// semicolons and equals signs.
fn is_plain_list(line: &[u8]) -> bool {
    let is_delimiter = |byte: u8| matches!(byte, b',' | b';' | b'=');
    let mut last = b',';
    let mut has_space = false;
    for &byte in line {
        if is_space(byte) {
            has_space = true;
            continue;
        }
        let is_printable = byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\');
        if !is_printable || has_space && !is_delimiter(last) && !is_delimiter(byte) {
            return false;
        }
        (last, has_space) = (byte, false);
    }
    true
}

/// Writes a list of preferences.
fn push_preferences(value: &mut SmallVec<[u8; 128]>, name: &str, request: &Fields<'_>) {
    let mut all: SmallVec<[&str; 8]> = request.elements(name).collect();
    if matches!(name, "accept-charset" | "accept-encoding") {
        all.sort_unstable_by(|one, other| preference(one).cmp(preference(other)));
        all.dedup_by(|one, other| preference(one).eq(preference(other)));
    }
    for (index, element) in all.into_iter().enumerate() {
        value.extend_from_slice(if index > 0 { b"," } else { b"" });
        value.extend_from_slice(element.as_bytes());
    }
    value.make_ascii_lowercase();
    if value.iter().copied().any(is_space) {
        value.retain(|byte| !is_space(*byte));
    }
}

/// Iterates over the bytes of an element in lower case without spaces.
fn preference(element: &str) -> impl Iterator<Item = u8> + '_ {
    lower(element).filter(|byte| !is_space(*byte))
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fields::Field;
    use crate::fields::tests::fields;

    fn variant(vary: &str, request: &[(&str, &str)]) -> Option<Variant> {
        Variant::of(&fields(&[("Vary", vary)]), &fields(request), &[])
    }

    fn keyed_by(vary: &str, keys: &[&str], request: &[(&str, &str)]) -> String {
        let keys: Vec<_> = keys.iter().map(|key| (*key).to_owned()).collect();
        let variant = Variant::of(&fields(&[("Vary", vary)]), &fields(request), &keys);
        variant.unwrap().text().to_owned()
    }

    #[test]
    fn variant_of_a_part_matches_its_range_alone() {
        let request = |lines: &[(&'static str, &'static str)]| -> Fields<'static> {
            lines.iter().map(|(name, value)| crate::fields::Field { name, value: value.as_bytes() }).collect()
        };
        let none = Fields::default();
        let own = Variant::of_part(&none, &request(&[("Range", "bytes=0-9")]), &[]).unwrap();
        assert!(is_of_range(own.text()) && !is_plain(own.text(), &[]) && overlap(own.text(), ""));
        assert!(matches_variant(&request(&[("range", "bytes=0-9"), ("A", "b")]), own.text()));
        let others: [&[(&'static str, &'static str)]; 4] = [
            &[],
            &[("range", "bytes=0-8")],
            &[("range", "bytes=0-9"), ("range", "bytes=0-9")],
            &[("range/part", "bytes=0-9")],
        ];
        assert!(others.iter().all(|other| !matches_variant(&request(other), own.text())));
        // An origin can name Range, but not this name.
        let by_vary = request(&[("vary", "range")]);
        let varied = Variant::of(&by_vary, &request(&[("range", "bytes=0-9")]), &[]).unwrap();
        assert!(!is_of_range(varied.text()));
        assert!(Variant::of(&request(&[("vary", "range/part")]), &none, &[]).is_none());
    }

    #[test]
    fn keys_are_part_of_each_variant_present_or_not() {
        let (with, without) = (&[("X-Tenant", "a")][..], &[][..]);
        let one = keyed_by("accept", &["x-tenant"], with);
        let none = keyed_by("accept", &["x-tenant"], without);
        assert_eq!((&*one, &*none), ("accept\nx-tenant:a\n", "accept\nx-tenant\n"));
        assert!(matches_variant(&fields(with), &one) && !matches_variant(&fields(with), &none));
        assert!(!matches_variant(&fields(without), &one) && matches_variant(&fields(without), &none));
        // Keys do not count towards the limit of names in Vary.
        let many = "a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p";
        assert!(keyed_by(many, &["x-tenant"], with).contains("x-tenant:a"));
    }

    #[test]
    fn cookie_is_a_key_by_its_name() {
        let of = |cookie: &'static str| keyed_by("", &["cookie/lang"], &[("Cookie", cookie)]);
        assert_eq!(of("a=1; lang=de; b=2"), "cookie/lang:lang=de\n");
        assert_eq!(keyed_by("", &["cookie/lang"], &[]), "cookie/lang\n");
        assert_eq!((&*of("a=1"), of("lang=de")), ("cookie/lang\n", of("x=y; lang=de")));
        // The origin could read the first one, or the last.
        assert_eq!(of("lang=de; Lang=fr"), "cookie/lang:lang=de; Lang=fr\n");
        let request = fields(&[("cookie", "b=1; lang=de")]);
        assert!(matches_variant(&request, &of("lang=de")) && !matches_variant(&request, &of("lang=fr")));
        assert!(!matches_variant(&request, &of("")) && is_of_user(&of("")) && !is_of_user("accept\n"));
        // Two lines of cookies reach the origin as one.
        let one = keyed_by("cookie", &[], &[("Cookie", "a=1; b=2")]);
        assert_eq!(one, keyed_by("cookie", &[], &[("Cookie", "a=1"), ("cookie", "b=2")]));
    }

    #[test]
    fn variant_of_other_keys_lacks_some() {
        let keys = ["x-tenant".to_owned()];
        let old = keyed_by("accept", &["x-other"], &[("X-Tenant", "a")]);
        let new = keyed_by("accept", &["x-other", "x-tenant"], &[]);
        assert!(!has_keys(&old, &keys) && has_keys(&new, &keys) && has_keys("", &[]));
        assert!(has_keys(&keyed_by("X-Tenant", &[], &[]), &keys));
    }

    #[test]
    fn variant_is_plain_without_a_value_of_a_key() {
        let keys = ["x-tenant".to_owned()];
        for (variant, expected) in [
            ("", true),
            ("accept:a/b\n", true),
            ("x-tenant\n", true),
            ("x-tenant:a\n", false),
            ("x-host:a\n", false),
            // Only addresses.
            ("forwarded:\n", true),
            ("x-other:a\n", true),
        ] {
            assert_eq!(is_plain(variant, &keys), expected, "{variant}");
        }
        let request = fields(&[("X-Host", "a"), ("Accept", "b")]);
        assert!(!has_keyed_of("accept:b\n", &request) && has_keyed_of("x-host:c\n", &request));
    }

    #[test]
    fn variants_overlap_unless_a_field_differs() {
        for (one, other, expected) in [
            ("", "a:1\n", true),
            ("a:1\n", "b:1\n", true),
            ("a:1\nb:1\n", "b:1\nc\n", true),
            ("a:1\n", "a:2\n", false),
            ("a:1\n", "a\n", false),
            ("a:\n", "a\n", false),
            ("", "rsc:1\n", false),
            ("accept:a\n", "accept:a\nrsc:1\n", false),
            ("", "rsc\n", true),
            ("", "forwarded:\n", true),
        ] {
            assert_eq!((overlap(one, other), overlap(other, one)), (expected, expected), "{one} {other}");
        }
    }

    #[test]
    fn irrelevant_differences_give_the_same_variant() {
        let one = variant(
            "Accept-Encoding, accept-language",
            &[("accept-encoding", "gzip , BR;q=0.5"), ("X", "1")],
        );
        let other = variant(
            "accept-language,Accept-Encoding",
            &[("Accept-Encoding", "br;q=0.5"), ("Accept-Encoding", "gzip")],
        );
        assert_eq!(one, other);
        assert_ne!(one, variant("Accept-Encoding, accept-language", &[("Accept-Encoding", "gzip")]));
        assert_eq!(variant("Cookie", &[]), variant("Cookie", &[("X", "1")]));
        assert_eq!(variant("a", &[("A", "1, 2")]), variant("A", &[("A", "1"), ("a", "2")]));
        assert_eq!(
            variant("accept", &[("Accept", "text/html, A/b;q=1")]),
            variant("accept", &[("accept", "text/html,a/b; q=1")])
        );
        assert_ne!(variant("Cookie", &[("Cookie", "a")]), variant("Cookie", &[("Cookie", "A")]));
        assert_eq!(variant("", &[]), Some(Variant::default()));
    }

    #[test]
    fn relevant_differences_give_another_variant() {
        for (vary, one, other) in [
            ("cookie", "a=1,b", "a=1, b"),
            ("accept-language", "en, fr", "fr, en"),
            ("x", "\u{e9}", "\u{e8}"),
            ("accept", "a/b, c/d", "c/d, a/b"),
        ] {
            assert_ne!(variant(vary, &[(vary, one)]), variant(vary, &[(vary, other)]), "{vary}");
        }
        assert_ne!(variant("accept-encoding", &[]), variant("accept-encoding", &[("Accept-Encoding", "")]));
        assert_eq!(variant("a:b", &[]), None);
        let named = |value| variant("a, b", &[("A", value)]);
        assert_ne!(named("1"), variant("a, b", &[("B", "1")]));
    }

    #[test]
    fn response_that_varies_on_everything_has_no_variant() {
        assert_eq!(variant("accept, *", &[]), None);
        assert_eq!(variant("accept\u{e9}", &[]), None);
        let many: &'static str = "a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q";
        assert_eq!(variant(many, &[]), None);
    }

    #[test]
    fn unnamed_key_field_gives_another_variant() {
        for (request, variant, expected) in [
            (&[][..], "", true),
            (&[("RSC", "1")], "", false),
            (&[("RSC", "1")], "rsc:1\n", true),
            (&[("RSC", "2")], "rsc:1\n", false),
            (&[], "rsc:1\n", false),
            (&[("RSC", "1"), ("HX-Request", "true")], "rsc:1\n", false),
            (&[("Accept", "a/b"), ("X-Requested-With", "x")], "accept:a/b\n", false),
            (&[("X-Other", "1")], "", true),
            (&[("Forwarded", "for=192.0.2.1")], "", true),
            (&[("Forwarded", "host=a")], "", false),
        ] {
            assert_eq!(matches_variant(&fields(request), variant), expected, "{request:?} {variant}");
        }
    }

    proptest! {
        #[test]
        fn equal_requests_have_the_same_variant(
            vary in "(accept|accept-encoding|x|y)(, (accept|x|z))?",
            name in "accept|accept-encoding|rsc|x",
            one in prop::option::of("[abAB, ]{0,3}"),
            other in prop::option::of("[abAB, ]{0,3}"),
        ) {
            let [one, other] = [&one, &other].map(|value| value.iter().map(|value| (&*name, &**value)).collect::<Vec<_>>());
            let (first, second) = (variant(&vary, &one), variant(&vary, &other));
            prop_assert_eq!(first == second, matches_variant(&fields(&other), first.unwrap().text()));
        }
    }

    #[test]
    fn lists_that_an_origin_may_read_in_another_way_are_not_normalised() {
        fn request<'a>(name: &'a str, lines: &[&'a [u8]]) -> Fields<'a> {
            lines.iter().map(|value| Field { name, value }).collect()
        }
        let same = |name: &str, one: &[&[u8]], other: &[&[u8]]| {
            let vary = fields(&[("Vary", name)]);
            let stored = Variant::of(&vary, &request(name, one), &[]).unwrap();
            matches_variant(&request(name, other), stored.text())
        };
        assert!(same("Accept-Encoding", &[b"GZIP ; q=1, br"], &[b"br", b"gzip;q=1"]));
        assert!(same("Accept", &[b"text/html, */* ; q=0.8"], &[b"text/html,*/*;q=0.8"]));
        for (name, one, other) in [
            ("Accept-Encoding", &[&b"gzip"[..], b"br, \xff"][..], &[&b"gzip"[..]][..]),
            ("Accept", &[b"text/html", b"application/json, \xff"], &[b"text/html"]),
            ("Accept", &[b"\xff"], &[b""]),
            ("Accept-Language", &[b"d e"], &[b"de"]),
            ("Accept-Encoding", &[b"g\tzip"], &[b"gzip"]),
            ("Accept", &[b"text/html;a=\"b  c\""], &[b"text/html;a=\"bc\""]),
        ] {
            assert!(!same(name, one, other), "{name}: {one:?} {other:?}");
            assert!(same(name, one, one));
        }
    }
}
