//! Content codings, and the choice of one by Accept-Encoding (RFC 9110, sections 8.4.1 and 12.5.3).

use crate::chunked::is_token;
use crate::fields::Fields;

/// Content coding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// RFC 8878.
    Zstd,
    /// RFC 7932.
    Brotli,
    /// RFC 1952.
    Gzip,
}

impl Coding {
    /// All codings. The order is that of [`Self::index`].
    pub const ALL: [Self; 3] = [Self::Zstd, Self::Brotli, Self::Gzip];

    /// Name in Content-Encoding.
    pub fn name(self) -> &'static str {
        match self {
            Self::Zstd => "zstd",
            Self::Brotli => "br",
            Self::Gzip => "gzip",
        }
    }

    /// Position in [`Self::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }

    /// Returns the coding of a name in Accept-Encoding, in any case. RFC 9110 section 8.4.1.3:
    /// `x-gzip` is gzip.
    pub fn of_name(name: &str) -> Option<Self> {
        let is_name = |coding: &Self| name.eq_ignore_ascii_case(coding.name());
        let other = || name.eq_ignore_ascii_case("x-gzip").then_some(Self::Gzip);
        Self::ALL.into_iter().find(is_name).or_else(other)
    }
}

/// Returns the coding that a request prefers; `None` for the identity, and also if its
/// Accept-Encoding is absent or malformed. `offered` is in the order of the server's preference,
/// which decides between equal weights. `*` stands for gzip, which all clients have: one that names
/// no coding may accept the others without a decoder for them.
pub fn preferred(request: &Fields<'_>, offered: &[Coding]) -> Option<Coding> {
    let weights = Weights::of(request)?;
    let others = |coding| weights.others.filter(|_| coding == Coding::Gzip);
    let of = |coding: Coding| weights.codings[coding.index()].or_else(|| others(coding)).unwrap_or(0);
    // The first of several equal ones.
    let best = offered.iter().copied().rev().max_by_key(|coding| of(*coding))?;
    let of_identity = weights.identity.or(weights.others).unwrap_or(0);
    (of(best) > 0 && of(best) >= of_identity).then_some(best)
}

/// Weights of Accept-Encoding in thousandths; `None` if it does not name the coding.
#[derive(Debug, Default)]
struct Weights {
    codings: [Option<u16>; Coding::ALL.len()],
    identity: Option<u16>,
    /// Weight of `*`.
    others: Option<u16>,
}

impl Weights {
    /// Returns the weights of a request; `None` without a well-formed Accept-Encoding.
    fn of(request: &Fields<'_>) -> Option<Self> {
        const NAME: &str = "accept-encoding";
        if !request.has(NAME) || !request.is_legible(NAME) {
            return None;
        }
        let mut weights = Self::default();
        for element in request.elements(NAME) {
            let (name, weight) = parsed(element)?;
            let own = match Coding::of_name(name) {
                Some(coding) => &mut weights.codings[coding.index()],
                None if name.eq_ignore_ascii_case("identity") => &mut weights.identity,
                None if name == "*" => &mut weights.others,
                None => continue,
            };
            // A coding that occurs twice may be meant to be excluded.
            *own = Some(own.map_or(weight, |earlier| earlier.min(weight)));
        }
        Some(weights)
    }
}

/// Parses `NAME` or `NAME;q=WEIGHT`.
fn parsed(element: &str) -> Option<(&str, u16)> {
    let is_space = |char: char| matches!(char, ' ' | '\t');
    let (name, weight) = match element.split_once(';') {
        None => (element, 1000),
        Some((name, parameter)) => {
            let value = parameter.trim_matches(is_space).strip_prefix(['q', 'Q'])?.strip_prefix('=')?;
            (name.trim_end_matches(is_space), thousandths(value)?)
        }
    };
    is_token(name.as_bytes()).then_some((name, weight))
}

/// Parses a weight (RFC 9110, section 12.4.2): 0 to 1 with at most three decimals.
fn thousandths(text: &str) -> Option<u16> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    if decimals.len() > 3 || !decimals.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let digit = |index: usize| decimals.as_bytes().get(index).map_or(0, |byte| u16::from(byte - b'0'));
    let part = 100 * digit(0) + 10 * digit(1) + digit(2);
    match (whole, part) {
        ("0", part) => Some(part),
        ("1", 0) => Some(1000),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Coding::{Brotli, Gzip, Zstd};
    use super::*;
    use crate::fields::Field;
    use crate::fields::tests::fields;

    fn choice(value: &str) -> Option<Coding> {
        preferred(&fields(&[("Accept-Encoding", value)]), &Coding::ALL)
    }

    #[test]
    fn weights_decide_and_then_the_order_of_the_server() {
        for (value, expected) in [
            ("gzip", Some(Gzip)),
            ("gzip, deflate, br, zstd", Some(Zstd)),
            ("gzip, br", Some(Brotli)),
            ("GZIP;q=0.9, BR;Q=0.8", Some(Gzip)),
            ("x-gzip", Some(Gzip)),
            ("zstd;q=0, gzip;q=0.001", Some(Gzip)),
            ("gzip ; q=1.000,br\t;\tq=0.999", Some(Gzip)),
            ("*", Some(Gzip)),
            ("*;q=0.5, br", Some(Brotli)),
            ("zstd;q=0, *", Some(Gzip)),
            ("gzip, *;q=0", Some(Gzip)),
            ("gzip;q=0.5, identity;q=0.5", Some(Gzip)),
            ("identity;q=0, gzip;q=0.1", Some(Gzip)),
            ("gzip;q=0.5, identity", None),
            ("gzip;q=0.5, *", None),
            ("gzip;q=0, br;q=0, zstd;q=0, *", None),
            ("identity", None),
            ("deflate, compress", None),
            ("", None),
            (" , ,", None),
            ("gzip;q=0", None),
            ("*;q=0", None),
            ("gzip;q=0, gzip", None),
        ] {
            assert_eq!(choice(value), expected, "{value}");
        }
        let lines = fields(&[("Accept-Encoding", "gzip"), ("accept-encoding", "br;q=0.1")]);
        assert_eq!(preferred(&lines, &[Brotli, Gzip]), Some(Gzip));
        assert_eq!(preferred(&lines, &[Zstd]), None);
        assert_eq!(preferred(&lines, &[]), None);
        assert_eq!(preferred(&fields(&[]), &Coding::ALL), None);
    }

    #[test]
    fn malformed_field_selects_no_coding() {
        for value in [
            "gzip;q=2",
            "gzip;q=1.1",
            "gzip;q=0.1234",
            "gzip;q=.5",
            "gzip;q=-1",
            "gzip;q=+1",
            "gzip;q=",
            "gzip;q",
            "gzip;",
            "gzip;q = 1",
            "gzip;q=1;q=1",
            "gzip;level=9",
            "gzip br",
            "\"gzip\"",
            "gzip, br/1",
            ";q=1, gzip",
            "gzip, \"",
        ] {
            assert_eq!(choice(value), None, "{value}");
        }
        let line = Field { name: "accept-encoding", value: b"gzip\xff" };
        assert_eq!(preferred(&[line].into_iter().collect(), &Coding::ALL), None);
    }

    proptest! {
        /// A coding is selected only if the field names it, or has `*` for gzip, and does not
        /// exclude it.
        #[test]
        fn selected_coding_is_acceptable(value in "(gzip|br|zstd|\\*|identity|x)?[;, q=01.]{0,8}(gzip|br|zstd|\\*)?(;q=0|;q=0\\.2)?") {
            if let Some(coding) = choice(&value) {
                let is_own = |it: &str| Coding::of_name(it.split(';').next().unwrap_or_default().trim()) == Some(coding);
                let elements: Vec<_> = value.split(',').map(str::trim).collect();
                prop_assert!(elements.iter().any(|it| is_own(it) || (coding == Gzip && it.starts_with('*'))));
                prop_assert!(!elements.iter().any(|it| is_own(it) && it.ends_with("q=0")));
            }
        }
    }
}
