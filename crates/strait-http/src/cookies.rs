//! Cookies of a request (RFC 6265, section 4.2).

use crate::fields::{Field, Fields};

/// Begin of the names of cookies among the fields of a key. It is no token, so Vary cannot name it.
pub const KEY_PREFIX: &str = "cookie/";

/// Iterates over the cookies of a request as they are written, `NAME=VALUE` without spaces around
/// them.
pub fn pairs<'s, 'b>(request: &'s Fields<'b>) -> impl Iterator<Item = &'b [u8]> + use<'s, 'b> {
    let all = request.all("cookie").flat_map(|field| field.value.split(|byte| *byte == b';'));
    all.map(<[u8]>::trim_ascii).filter(|pair| !pair.is_empty())
}

/// Returns the name of a cookie.
pub fn name_of(pair: &[u8]) -> &[u8] {
    pair.split(|byte| *byte == b'=').next().unwrap_or_default().trim_ascii_end()
}

/// Returns true if programs could read a cookie with the name `name`: they differ in case, in the
/// characters that they replace, and in what separates two cookies.
pub(crate) fn may_be(pair: &[u8], name: &str) -> bool {
    let is_plain = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b',' | b'\\');
    let own = name_of(pair);
    let is_same = |(one, other): (&u8, &u8)| {
        one.eq_ignore_ascii_case(other) || !one.is_ascii_alphanumeric() && !other.is_ascii_alphanumeric()
    };
    !pair.iter().all(is_plain)
        || own.iter().any(|byte| matches!(byte, b'%' | b'['))
        || own.len() == name.len() && own.iter().zip(name.as_bytes()).all(is_same)
}

/// Removes the cookies with names that `is_dropped` accepts. What is left of a line can become
/// several lines.
pub fn remove(request: &mut Fields<'_>, is_dropped: impl Fn(&[u8]) -> bool) {
    let is_kept = |pair: &[u8]| !is_dropped(name_of(pair.trim_ascii()));
    let cookies = |value: &[u8]| value.split(|byte| *byte == b';').all(is_kept);
    if request.all("cookie").all(|field| cookies(field.value)) {
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
                push(request, name, &value[begin..end]);
                begin = next + 1;
            }
            end = next + 1;
        }
        push(request, name, value.get(begin..).unwrap_or_default());
    }
}

fn push<'b>(request: &mut Fields<'b>, name: &'b str, piece: &'b [u8]) {
    let piece = piece.trim_ascii();
    let piece = piece.strip_suffix(b";").unwrap_or(piece).trim_ascii();
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
            ("a=1;x=1;;x=2; b=2 ;", &["a=1", "b=2"]),
            ("X=1; xx=2; x", &["X=1; xx=2"]),
            ("x =1; a", &["a"]),
            ("", &[""]),
        ] {
            assert_eq!(without(&[("Cookie", line), ("A", "x=1")], &["x"]), expected, "{line}");
        }
        assert_eq!(without(&[("cookie", "x=1"), ("Cookie", "a=1")], &["x"]), ["a=1"]);
    }

    #[test]
    fn cookie_that_programs_read_differently_may_have_each_name() {
        for (pair, expected) in [
            ("lang=de", true),
            ("LANG=de", true),
            ("lang", true),
            ("lang =de", true),
            ("l%61ng=de", true),
            ("x=1, lang=de", true),
            ("x=\"; y", true),
            ("x\u{e9}=1", true),
            ("a[lang]=1", true),
            ("langs=de", false),
            ("x=lang", false),
            ("x=%41", false),
        ] {
            assert_eq!(may_be(pair.as_bytes(), "lang"), expected, "{pair}");
        }
        assert!(may_be(b"my.lang=1", "my_lang") && !may_be(b"myxlang=1", "my_lang"));
    }

    proptest! {
        #[test]
        fn what_is_left_has_all_other_cookies_in_their_order(line in "[ab=; x]{0,24}") {
            let field = [Field { name: "Cookie", value: line.as_bytes() }];
            let mut request: Fields<'_> = field.into_iter().collect();
            let expected: Vec<_> = pairs(&request).filter(|pair| name_of(pair) != b"x").collect();
            remove(&mut request, |name| name == b"x");
            prop_assert_eq!(pairs(&request).collect::<Vec<_>>(), expected);
        }
    }
}
