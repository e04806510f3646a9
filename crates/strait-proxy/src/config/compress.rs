//! Compression of stored responses, as a route has it.
//!
//! Only stored responses are compressed that do not vary with a field that identifies a user. They
//! are the same for all clients, so the length of the result shows no client's secret beside text
//! of an attacker (the BREACH attack).

use strait_http::coding::Coding;

use crate::config::edge::{Compress, Level};
use crate::config::rules::{RequestRules, ResponseRules};

/// Longest body that is compressed. Compression needs a small multiple of it in memory.
pub(crate) const BODY_BYTES_MAX: u64 = 16 << 20;
/// Maximum of media types: each is compared for each response.
const TYPES_MAX: usize = 64;
/// Field by which a coding is chosen.
const ACCEPT_ENCODING: &str = "accept-encoding";

/// Compression of the stored responses of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Compression {
    /// In the order of preference.
    pub(crate) codings: Vec<Coding>,
    /// Media types in lower case, and beginnings of such, which end with a slash.
    types: Vec<Box<str>>,
    bytes_min: u64,
    pub(crate) level: Level,
}

impl Compression {
    /// Checks the keys of a route; returns the reason, after the key, if they are wrong.
    pub(crate) fn new(
        compress: &Compress,
        request: Option<&RequestRules>,
        response: Option<&ResponseRules>,
    ) -> Result<Self, String> {
        if let Some(why) = why_no_rules(request, response) {
            return Err(why);
        }
        let mut codings = Vec::new();
        for name in &compress.codings {
            let coding = Coding::ALL.into_iter().find(|coding| coding.name() == name);
            match coding {
                Some(coding) if !codings.contains(&coding) => codings.push(coding),
                _ => {
                    let name = name.escape_default();
                    return Err(format!(
                        ".codings: \"{name}\": expected each of zstd, br and gzip at most once"
                    ));
                }
            }
        }
        if codings.is_empty() || !(1..=TYPES_MAX).contains(&compress.types.len()) {
            return Err(format!(
                ": it compresses nothing; write at least one coding, and 1 to {TYPES_MAX} types, or leave it out"
            ));
        }
        let types = compress.types.iter().map(|text| media_range(text)).collect::<Result<_, _>>()?;
        Ok(Self { codings, types, bytes_min: compress.min_bytes, level: compress.level })
    }

    /// Returns true for a response with that length, if it is known, and that Content-Type.
    pub(crate) fn covers(&self, length: Option<u64>, content_type: Option<&str>) -> bool {
        let is_of_length = |length| (self.bytes_min..=BODY_BYTES_MAX).contains(&length);
        let media = content_type.and_then(|text| text.split(';').next()).map_or("", str::trim);
        length.is_none_or(is_of_length) && self.types.iter().any(|own| is_in(media, own))
    }
}

/// Returns the reason why rules for fields do not allow compression.
fn why_no_rules(request: Option<&RequestRules>, response: Option<&ResponseRules>) -> Option<String> {
    if request.is_some_and(|rules| rules.drops(ACCEPT_ENCODING) || rules.writes(ACCEPT_ENCODING)) {
        return Some(
            ": request_headers changes Accept-Encoding, by which a coding is chosen; remove one of them"
                .to_owned(),
        );
    }
    // Without its tag, a client could continue a compressed response with bytes of the original.
    let dropped =
        ["vary", "etag"].into_iter().find(|name| response.is_some_and(|rules| rules.drops(name)))?;
    Some(format!(
        ": response_headers removes or sets {dropped}, which distinguishes compressed responses; remove one of them"
    ))
}

/// Returns a media type in lower case, or for `text/*` its beginning.
fn media_range(text: &str) -> Result<Box<str>, String> {
    let is_token = |text: &str| strait_http::chunked::is_token(text.as_bytes());
    match text.split_once('/') {
        Some((kind, "*")) if is_token(kind) && kind != "*" => {
            Ok(format!("{kind}/").to_ascii_lowercase().into())
        }
        Some((kind, name)) if is_token(kind) && is_token(name) && !text.contains('*') => {
            Ok(text.to_ascii_lowercase().into())
        }
        _ => Err(format!(
            ".types: \"{}\": expected a media type, for example \"application/json\" or \"text/*\"",
            text.escape_default()
        )),
    }
}

fn is_in(media: &str, own: &str) -> bool {
    if own.ends_with('/') {
        media.get(..own.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(own))
    } else {
        media.eq_ignore_ascii_case(own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::rules::FieldChanges;

    #[test]
    fn responses_are_compressed_by_type_and_length() {
        let compression = Compression::new(&Compress::default(), None, None).unwrap();
        for (length, media, expected) in [
            (Some(1024), Some("text/html; charset=utf-8"), true),
            (Some(BODY_BYTES_MAX), Some("Application/JSON"), true),
            (None, Some(" text/plain ;x"), true),
            (Some(1023), Some("text/html"), false),
            (Some(BODY_BYTES_MAX + 1), Some("text/html"), false),
            (Some(5000), Some("image/png"), false),
            (Some(5000), Some("texts/html"), false),
            (Some(5000), Some("text"), false),
            (Some(5000), Some("application/jsonp"), false),
            (Some(5000), None, false),
        ] {
            assert_eq!(compression.covers(length, media), expected, "{length:?} {media:?}");
        }
    }

    #[test]
    fn wrong_keys_are_refused() {
        let texts = |all: &[&str]| all.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let with_codings = |all| Compress { codings: texts(all), ..Compress::default() };
        let with_types = |all| Compress { types: texts(all), ..Compress::default() };
        for (compress, expected) in [
            (with_codings(&[]), "compresses nothing"),
            (with_codings(&["deflate"]), "\"deflate\": expected each of zstd, br and gzip"),
            (with_codings(&["br", "br"]), "at most once"),
            (with_types(&[]), "compresses nothing"),
            (with_types(&["text"]), "\"text\": expected a media type"),
            (with_types(&["*/*"]), "expected a media type"),
            (with_types(&["text/x*"]), "expected a media type"),
        ] {
            let error = Compression::new(&compress, None, None).unwrap_err();
            assert!(error.contains(expected) && !error.contains('\n'), "{error}");
        }
        let request = RequestRules { dropped: vec![ACCEPT_ENCODING.into()], ..RequestRules::default() };
        assert!(Compression::new(&Compress::default(), Some(&request), None).is_err());
        let response = ResponseRules {
            changes: FieldChanges { dropped: vec!["etag".into()], ..FieldChanges::default() },
            ..ResponseRules::default()
        };
        assert!(Compression::new(&Compress::default(), None, Some(&response)).is_err());
    }
}
