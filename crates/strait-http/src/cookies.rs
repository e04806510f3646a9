//! Cookies of a request (RFC 6265, section 4.2).
//!
//! Programs differ in how they read them. A cache that uses a part of them reads as the strictest
//! one where it drops cookies, and takes what any could read for a cookie of its key.

use crate::fields::{Field, Fields};

/// Begin of the names of cookies among the fields of a key. It is no token, so Vary cannot name it.
pub const KEY_PREFIX: &str = "cookie/";

/// Cookies of a request beyond which each counts as one that programs read differently: some stop
/// at a number of their own.
const READ_ALIKE_MAX: usize = 50;

/// Names of attributes of Set-Cookie and of RFC 2965. Some programs take them for such, and read no
/// cookie of the request.
const ATTRIBUTES: [&str; 11] = [
    "comment",
    "domain",
    "expires",
    "httponly",
    "max-age",
    "partitioned",
    "path",
    "priority",
    "samesite",
    "secure",
    "version",
];

/// Iterates over the cookies of a request, `NAME=VALUE`. One that is not separated by a semicolon
/// and one space begins with the semicolon.
pub fn pairs<'s, 'b>(request: &'s Fields<'b>) -> impl Iterator<Item = &'b [u8]> + use<'s, 'b> {
    request.all("cookie").flat_map(|field| pieces(field.value))
}

fn pieces(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut begin = Some(0);
    std::iter::from_fn(move || {
        let at = begin?;
        let rest = line.get(at..)?;
        let end = rest.iter().position(|byte| *byte == b';').map(|len| at + len);
        begin = end.map(|end| end + 1);
        let piece = line.get(at..end.unwrap_or(line.len()))?;
        let separator = at.saturating_sub(1);
        Some(if at == 0 {
            piece
        } else {
            piece.strip_prefix(b" ").unwrap_or(&line[separator..at + piece.len()])
        })
    })
    .filter(|piece| !piece.is_empty())
}

/// Iterates over the values of the cookies with a name, without spaces around them. There can be
/// several, as a page of another subdomain can set one.
pub fn values<'s, 'b>(
    request: &'s Fields<'b>,
    name: &'s str,
) -> impl Iterator<Item = &'b [u8]> + use<'s, 'b> {
    let all = request.all("cookie").flat_map(|field| field.value.split(|byte| *byte == b';'));
    all.filter_map(move |pair| pair.trim_ascii().strip_prefix(name.as_bytes())?.strip_prefix(b"="))
}

/// Returns the name of a cookie.
pub fn name_of(pair: &[u8]) -> &[u8] {
    let pair = pair.strip_prefix(b";").unwrap_or(pair);
    pair.split(|byte| *byte == b'=').next().unwrap_or_default().trim_ascii()
}

/// Returns true if programs could read a cookie with the name `name`, or with a name that begins so
/// if `is_begin`: they differ in case, in the characters that they replace, in what separates two
/// cookies, and in what ends them.
pub fn may_be(pair: &[u8], name: &str, is_begin: bool) -> bool {
    if is_odd(pair) {
        return true;
    }
    let own = name_of(pair);
    let is_same = |(one, other): (&u8, &u8)| {
        one.eq_ignore_ascii_case(other) || !one.is_ascii_alphanumeric() && !other.is_ascii_alphanumeric()
    };
    let is_long = if is_begin { own.len() >= name.len() } else { own.len() == name.len() };
    is_long && own.iter().zip(name.as_bytes()).all(is_same)
}

/// Returns true if programs read a cookie, or those beside it, differently.
fn is_odd(pair: &[u8]) -> bool {
    let is_plain = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b',' | b'\\' | b';');
    let is_name =
        |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'!' | b'~');
    let name = name_of(pair);
    !pair.iter().all(is_plain)
        || name.len() == pair.len()
        || name.is_empty()
        || !name.iter().all(is_name)
        || ATTRIBUTES.iter().any(|own| name.eq_ignore_ascii_case(own.as_bytes()))
}

/// Iterates over the cookies of a request that programs could read as `name`.
pub(crate) fn all_like<'s, 'b>(
    request: &'s Fields<'b>,
    name: &'s str,
) -> impl Iterator<Item = &'b [u8]> + use<'s, 'b> {
    let are_many = pairs(request).nth(READ_ALIKE_MAX).is_some();
    pairs(request).filter(move |pair| are_many || may_be(pair, name, false))
}

/// Removes the cookies with names that `is_dropped` accepts. What is left of a line can become
/// several lines.
pub fn remove(request: &mut Fields<'_>, is_dropped: impl Fn(&[u8]) -> bool) {
    let is_kept = |pair: &[u8]| !is_dropped(name_of(pair));
    let are_kept = |value: &[u8]| value.split(|byte| *byte == b';').all(is_kept);
    if request.all("cookie").all(|field| are_kept(field.value)) {
        return;
    }
    let lines: Vec<_> = request.all("cookie").copied().collect();
    request.remove(|name| name.eq_ignore_ascii_case("cookie"));
    for Field { name, value } in lines {
        // Cookies that stay beside each other stay one piece.
        let (mut begin, mut end) = (0, 0);
        for pair in value.split(|byte| *byte == b';') {
            let next = end + pair.len();
            if !is_kept(pair) {
                // Without the semicolon before it.
                push(request, name, &value[begin..end.saturating_sub(1).max(begin)]);
                begin = next + 1;
            }
            end = next + 1;
        }
        push(request, name, value.get(begin..).unwrap_or_default());
    }
}

fn push<'b>(request: &mut Fields<'b>, name: &'b str, piece: &'b [u8]) {
    let piece = piece.strip_prefix(b" ").unwrap_or(piece);
    if !piece.is_empty() {
        request.push(Field { name, value: piece });
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fields::tests::fields;

    fn without(lines: &[(&'static str, &'static str)], names: &[&str]) -> Vec<String> {
        let mut request = fields(lines);
        remove(&mut request, |name| names.iter().any(|own| own.as_bytes() == name));
        request.all("cookie").map(|field| field.text().unwrap().to_owned()).collect()
    }

    #[test]
    fn cookies_are_removed_and_neighbours_stay_together() {
        for (line, expected) in [
            ("a=1; b=2", &["a=1; b=2"][..]),
            ("x=1", &[]),
            ("x=1; a=1; b=2", &["a=1; b=2"]),
            ("a=1; x=1; b=2", &["a=1", "b=2"]),
            ("a=1; b=2; x=1", &["a=1; b=2"]),
            ("a=1;x=1;;x=2; b=2 ;", &["a=1", "b=2 ;"]),
            ("X=1; xx=2; x", &["X=1; xx=2"]),
            ("x =1; a", &["a"]),
            ("", &[""]),
        ] {
            assert_eq!(without(&[("Cookie", line), ("A", "x=1")], &["x"]), expected, "{line}");
        }
        assert_eq!(without(&[("cookie", "x=1"), ("Cookie", "a=1")], &["x"]), ["a=1"]);
    }

    #[test]
    fn cookies_that_are_not_separated_as_usual_show_it() {
        for (line, expected) in [
            ("a=1; b=2", &["a=1", "b=2"][..]),
            ("a=1;b=2", &["a=1", ";b=2"]),
            ("a=1;  b=2 ; c", &["a=1", " b=2 ", "c"]),
            ("a=1;", &["a=1", ";"]),
            ("; a", &["a"]),
            ("", &[]),
        ] {
            let request = fields(&[("Cookie", line)]);
            let own: Vec<_> = pairs(&request).map(|pair| std::str::from_utf8(pair).unwrap()).collect();
            assert_eq!(own, expected, "{line}");
        }
    }

    #[test]
    fn cookie_that_programs_read_differently_may_have_each_name() {
        for (pair, expected) in [
            ("lang=de", true),
            ("LANG=de", true),
            ("lang", true),
            ("lang =de", true),
            ("lang=de ", true),
            (";x=1", true),
            ("x", true),
            ("=x", true),
            ("l%61ng=de", true),
            ("+lang=de", true),
            ("$Version=1", true),
            ("path=/", true),
            ("a]=1", true),
            ("x=1, lang=de", true),
            ("x=\"; y", true),
            ("x\u{e9}=1", true),
            ("a[lang]=1", true),
            ("langs=de", false),
            ("x=lang", false),
            ("x=%41", false),
        ] {
            assert_eq!(may_be(pair.as_bytes(), "lang", false), expected, "{pair}");
        }
        assert!(may_be(b"my.lang=1", "my_lang", false) && !may_be(b"myxlang=1", "my_lang", false));
        assert!(may_be(b"session.id=1", "session_", true) && !may_be(b"sessio=1", "session", true));
    }

    #[test]
    fn all_of_many_cookies_are_like_each_name() {
        let many = |count: usize| ["a=1; ".repeat(count), "lang=de".to_owned()].concat();
        for (count, expected) in [(READ_ALIKE_MAX - 1, 1), (READ_ALIKE_MAX, READ_ALIKE_MAX + 1)] {
            let line = many(count);
            let request: Fields<'_> =
                [Field { name: "Cookie", value: line.as_bytes() }].into_iter().collect();
            assert_eq!(all_like(&request, "lang").count(), expected, "{count}");
        }
    }

    proptest! {
        #[test]
        fn what_is_left_has_all_other_cookies_in_their_order(line in "[ab=; x]{0,24}") {
            let field = [Field { name: "Cookie", value: line.as_bytes() }];
            let mut request: Fields<'_> = field.into_iter().collect();
            let names = |request: &Fields<'_>| -> Vec<Vec<u8>> {
                let all = request.all("cookie").flat_map(|field| field.value.split(|byte| *byte == b';'));
                all.map(<[u8]>::trim_ascii).filter(|pair| !pair.is_empty()).map(Vec::from).collect()
            };
            let expected: Vec<_> = names(&request).into_iter().filter(|pair| name_of(pair) != b"x").collect();
            remove(&mut request, |name| name == b"x");
            prop_assert_eq!(names(&request), expected);
        }
    }
}
