//! Which of several stored responses answers a request: the fields that Vary names (RFC 9111, section 4.1).

use crate::fields::{Fields, split_list};

/// Fields that a response may vary with: more are not stored.
pub const NAMES_MAX: usize = 16;

/// What a request said of the fields that a response varies with: equal texts may have the same response.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Variant(String);

impl Variant {
    /// Of a request, for a response with such a Vary; `None` where it varies with everything, or with too much.
    pub fn of(vary: &Fields<'_>, asked: &Fields<'_>) -> Option<Self> {
        let mut names: Vec<String> = vary.elements("vary").map(str::to_ascii_lowercase).collect();
        names.sort_unstable();
        names.dedup();
        if names.len() > NAMES_MAX || names.iter().any(|name| name == "*") {
            return None;
        }
        let mut text = String::new();
        for name in &names {
            // No value has a line feed, so that no two lists of values become one text.
            text.extend([name, ":", &*normalised(name, asked), "\n"]);
        }
        Some(Self(text))
    }

    /// As it is kept.
    pub fn text(&self) -> &str {
        &self.0
    }
}

/// A value without what makes no difference. Lists of tokens with weights are in lower case, without spaces and in one order: they say
/// the same in any (RFC 9110, section 12.5).
fn normalised(name: &str, asked: &Fields<'_>) -> String {
    if matches!(name, "accept-charset" | "accept-encoding" | "accept-language") {
        let all: Vec<_> = asked.elements(name).map(without_spaces).collect();
        let mut all: Vec<_> = all.iter().map(|element| element.to_ascii_lowercase()).collect();
        all.sort_unstable();
        all.dedup();
        return all.join(",");
    }
    let lines: Vec<_> = asked.all(name).map(|field| String::from_utf8_lossy(field.value)).collect();
    let elements: Vec<_> = lines.iter().flat_map(|line| split_list(line)).collect();
    elements.join(", ")
}

fn without_spaces(element: &str) -> String {
    element.chars().filter(|character| !matches!(character, ' ' | '\t')).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::tests::fields;

    fn variant(vary: &'static str, asked: &[(&'static str, &'static str)]) -> Option<Variant> {
        Variant::of(&fields(&[("Vary", vary)]), &fields(asked))
    }

    #[test]
    fn what_makes_no_difference_is_the_same_variant() {
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
        assert_ne!(variant("Cookie", &[("Cookie", "a")]), variant("Cookie", &[("Cookie", "A")]));
        assert_eq!(variant("", &[]), Some(Variant::default()));
    }

    #[test]
    fn what_varies_with_everything_has_no_variant() {
        assert_eq!(variant("accept, *", &[]), None);
        let many: &'static str = "a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q";
        assert_eq!(variant(many, &[]), None);
    }
}
