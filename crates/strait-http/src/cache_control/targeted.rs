//! The members of a targeted field (RFC 9213, section 2.1): a dictionary of structured fields (RFC 8941, section 3.2), which is passed
//! over as a whole where it is not one.

use crate::fields::Fields;

/// The members of the field `name`: names, and values without quotes. `None` where there is none, or what is there is no dictionary.
pub(super) fn members<'b>(fields: &Fields<'b>, name: &str) -> Option<Vec<(&'b str, Option<&'b str>)>> {
    if fields.all(name).any(|line| line.text().is_none()) {
        return None;
    }
    let members: Vec<_> = fields.elements(name).map(member).collect::<Option<_>>()?;
    let is_told = |(_, value): &(&str, Option<&str>)| *value != Some("?0");
    let told = |(name, value)| (name, if value == Some("?1") { None } else { value });
    (!members.is_empty()).then(|| members.into_iter().filter(is_told).map(told).collect())
}

fn member(text: &str) -> Option<(&str, Option<&str>)> {
    let is_of_key = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-.*".contains(&byte);
    let key_end = text.bytes().position(|byte| !is_of_key(byte)).unwrap_or(text.len());
    let (key, rest) = text.split_at(key_end);
    if !key.starts_with(|first: char| first.is_ascii_lowercase() || first == '*') {
        return None;
    }
    match rest.as_bytes().first() {
        // Parameters say nothing.
        None | Some(b';') => Some((key, None)),
        Some(b'=') => item(&rest[1..]).map(|value| (key, Some(value))),
        Some(_) => None,
    }
}

/// The value that stands before parameters.
fn item(text: &str) -> Option<&str> {
    if let Some(inside) = text.strip_prefix('"') {
        let (value, rest) = inside.split_once('"')?;
        // No directive needs what would have to be escaped.
        let is_whole = !value.contains('\\') && (rest.is_empty() || rest.starts_with(';'));
        return is_whole.then_some(value);
    }
    let value = text.split(';').next().unwrap_or_default();
    let is_number = |value: &str| {
        let digits = value.strip_prefix('-').unwrap_or(value);
        digits.starts_with(|first: char| first.is_ascii_digit())
            && digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
    };
    let is_token = |value: &str| {
        value.starts_with(|first: char| first.is_ascii_alphabetic() || first == '*')
            && value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(&byte))
    };
    (matches!(value, "?0" | "?1") || is_number(value) || is_token(value)).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::tests::fields;

    #[test]
    fn what_is_no_dictionary_is_none_at_all() {
        for (value, expected) in [
            ("max-age=60, no-cache", Some(vec![("max-age", Some("60")), ("no-cache", None)])),
            (
                "max-age=60;a=b, private=\"a, b\"",
                Some(vec![("max-age", Some("60")), ("private", Some("a, b"))]),
            ),
            ("no-store=?0, public=?1, x;y", Some(vec![("public", None), ("x", None)])),
            ("", None),
            ("Max-Age=60", None),
            ("max-age=", None),
            ("max-age =60", None),
            ("max-age= 60", None),
            ("max-age=60 no-store", None),
            ("max-age=\"60", None),
            ("a=\"b\"c", None),
            ("&", None),
        ] {
            assert_eq!(members(&fields(&[("X", value)]), "x"), expected, "{value}");
        }
    }
}
