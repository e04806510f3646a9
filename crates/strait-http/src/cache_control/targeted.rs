//! Directives in a targeted field (RFC 9213, section 2).
//!
//! Such a field is a dictionary of structured fields, so a value has a type, and a directive counts
//! only with a value of its type: `max-age="60"` is a string, which other caches ignore as well.
//! The field is ignored if it is empty or not a dictionary.

use std::collections::BTreeMap;

use super::{OfResponse, SECONDS_MAX, Scope};
use crate::fields::{Field, Fields};
use crate::structured::{Value, dictionary};

/// Directives of a targeted field.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Targeted {
    pub(super) directives: OfResponse,
    /// A known directive was ignored because of its value, so the intended policy is not certain.
    pub(super) is_doubtful: bool,
}

/// Directives in the field `name`; `None` if it is absent, empty or invalid. All its lines are one
/// dictionary.
pub(super) fn read(fields: &Fields<'_>, name: &str) -> Option<Targeted> {
    if !fields.has(name) {
        return None;
    }
    let lines: Vec<_> = fields.all(name).map(Field::text).collect::<Option<_>>()?;
    let text = lines.join(", ");
    let members = Members(dictionary(&text)?);
    // RFC 9213 s2.2: a field with unknown members only counts too, as its example `none` shows.
    (!members.0.is_empty())
        .then(|| Targeted { directives: members.directives(), is_doubtful: members.are_doubtful() })
}

/// Directives without a value.
const FLAGS: [&str; 7] = [
    "no-store",
    "public",
    "must-revalidate",
    "proxy-revalidate",
    "must-understand",
    "no-transform",
    "immutable",
];
/// Directives with a number of seconds.
const SECONDS: [&str; 4] = ["max-age", "s-maxage", "stale-while-revalidate", "stale-if-error"];
/// Directives without a value, or with field names.
const SCOPES: [&str; 2] = ["no-cache", "private"];

/// Members of the dictionary.
struct Members<'t>(BTreeMap<&'t str, Value>);

impl Members<'_> {
    fn directives(&self) -> OfResponse {
        OfResponse {
            targeted: true,
            no_store: self.flag("no-store"),
            no_cache: self.scope("no-cache"),
            private: self.scope("private"),
            public: self.flag("public"),
            max_age: self.max_age(),
            s_maxage: self.seconds("s-maxage"),
            must_revalidate: self.flag("must-revalidate"),
            proxy_revalidate: self.flag("proxy-revalidate"),
            must_understand: self.flag("must-understand"),
            no_transform: self.flag("no-transform"),
            immutable: self.flag("immutable"),
            stale_while_revalidate: self.seconds("stale-while-revalidate"),
            stale_if_error: self.seconds("stale-if-error"),
        }
    }

    fn are_doubtful(&self) -> bool {
        self.0.iter().any(|(name, value)| match value {
            Value::Integer(seconds) if *seconds >= 0 => FLAGS.contains(name) || SCOPES.contains(name),
            Value::Boolean(_) => SECONDS.contains(name),
            Value::String(_) => FLAGS.contains(name) || SECONDS.contains(name),
            _ => FLAGS.contains(name) || SECONDS.contains(name) || SCOPES.contains(name),
        })
    }

    fn flag(&self, name: &str) -> bool {
        self.0.get(name) == Some(&Value::Boolean(true))
    }

    /// A directive without a value, or with a string of field names.
    fn scope(&self, name: &str) -> Scope {
        let mut scope = Scope::None;
        match self.0.get(name) {
            Some(Value::Boolean(true)) => scope.add(None),
            Some(Value::String(names)) => scope.add(Some(names)),
            _ => {}
        }
        scope
    }

    fn seconds(&self, name: &str) -> Option<u64> {
        let Some(Value::Integer(seconds)) = self.0.get(name) else { return None };
        u64::try_from(*seconds).ok().map(|seconds| seconds.min(SECONDS_MAX))
    }

    /// The value of `max-age`; 0 if the field tries to set a lifetime and no value of it can be
    /// used: a response with invalid freshness is stale (RFC 9111, section 4.2.1), so no
    /// heuristic may give it a lifetime.
    fn max_age(&self) -> Option<u64> {
        let is_invalid = |name| self.0.contains_key(name) && self.seconds(name).is_none();
        let is_stale =
            self.seconds("s-maxage").is_none() && (is_invalid("max-age") || is_invalid("s-maxage"));
        self.seconds("max-age").or(is_stale.then_some(0))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fields::tests::fields;

    fn directives_of(lines: &[&str]) -> Option<OfResponse> {
        let lines: Vec<_> = lines.iter().map(|line| ("CDN-Cache-Control", *line)).collect();
        read(&fields(&lines), "cdn-cache-control").map(|targeted| targeted.directives)
    }

    #[test]
    fn empty_field_or_no_dictionary_is_ignored() {
        for value in
            ["", "Max-Age=60", "max-age=", "max-age =60", "max-age=60 no-store", "max-age=60, &&", "é"]
        {
            assert_eq!(directives_of(&[value]), None, "{value}");
        }
        assert_eq!(directives_of(&[]), None);
        assert_eq!(directives_of(&["max-age=60", "&"]), None);
        assert_eq!(directives_of(&["max-age=60", ""]), None);
    }

    #[test]
    fn lifetime_is_a_nonnegative_integer() {
        let lifetimes = |value: &str| directives_of(&[value]).map(|read| (read.max_age, read.s_maxage));
        assert_eq!(lifetimes("max-age=60;a=b"), Some((Some(60), None)));
        assert_eq!(lifetimes("max-age=999999999999999"), Some((Some(SECONDS_MAX), None)));
        for value in ["\"10000\"", "10000.0", "-1", "a", "?1", ":aaaa:", "@10000", "%\"10000\"", "(10000)"] {
            assert_eq!(lifetimes(&format!("max-age={value}")), Some((Some(0), None)), "{value}");
            assert_eq!(lifetimes(&format!("s-maxage={value}")), Some((Some(0), None)), "{value}");
            assert_eq!(lifetimes(&format!("s-maxage=5, max-age={value}")), Some((None, Some(5))), "{value}");
            assert_eq!(lifetimes(&format!("max-age=5, s-maxage={value}")), Some((Some(5), None)), "{value}");
            let stale = format!("stale-if-error={value}, stale-while-revalidate={value}");
            let expected = OfResponse { targeted: true, ..OfResponse::default() };
            assert_eq!(directives_of(&[&stale]), Some(expected), "{value}");
        }
        assert_eq!(lifetimes("max-age"), Some((Some(0), None)));
    }

    #[test]
    fn flag_is_a_boolean() {
        let flags = |value: &str| directives_of(&[value]).map(|read| (read.no_store, read.must_revalidate));
        assert_eq!(flags("no-store, must-revalidate=?1"), Some((true, true)));
        assert_eq!(flags("no-store=?0, must-revalidate=1"), Some((false, false)));
        assert_eq!(flags("no-store=\"a\", must-revalidate=a"), Some((false, false)));
    }

    #[test]
    fn field_names_are_a_string() {
        let scopes = |value: &str| directives_of(&[value]).map(|read| (read.private, read.no_cache));
        let names = Scope::Fields(vec!["a".into(), "b".into()]);
        assert_eq!(scopes("private, no-cache=\"A, b\""), Some((Scope::All, names)));
        assert_eq!(scopes("private=a, no-cache=?0"), Some((Scope::None, Scope::None)));
        assert_eq!(scopes("private=1, no-cache=(\"a\")"), Some((Scope::None, Scope::None)));
    }

    #[test]
    fn value_of_the_wrong_type_makes_the_field_doubtful() {
        let is_doubtful =
            |value: &str| read(&fields(&[("A", value)]), "a").map(|targeted| targeted.is_doubtful);
        for value in
            ["max-age=1, private=\"a\", no-cache=?0, no-store=?0, x=1, y=\"z\"", "none", "s-maxage=0"]
        {
            assert_eq!(is_doubtful(value), Some(false), "{value}");
        }
        for value in
            ["max-age=\"1\"", "max-age", "stale-if-error=-1", "no-store=1", "public=\"\"", "private=a"]
        {
            assert_eq!(is_doubtful(value), Some(true), "{value}");
        }
    }

    #[test]
    fn last_value_counts_over_all_lines() {
        let read = directives_of(&["max-age=60, no-store", "max-age=5, no-store=?0"]).expect("it is valid");
        assert_eq!((read.max_age, read.no_store), (Some(5), false));
        // A valid earlier value does not replace a later one of the wrong type.
        assert_eq!(directives_of(&["max-age=60", "max-age=\"9\""]).expect("it is valid").max_age, Some(0));
    }

    #[test]
    fn field_with_only_unknown_members_counts() {
        let expected = OfResponse { targeted: true, ..OfResponse::default() };
        assert_eq!(directives_of(&["none"]), Some(expected));
    }

    proptest! {
        #[test]
        fn any_lines_are_read_or_ignored(a in "\\PC{0,30}", b in "(max-age|no-store|private)[=;,?01\"a ()]{0,9}") {
            let _ = (directives_of(&[&a]), directives_of(&[&b]), directives_of(&[&a, &b]));
        }
    }
}
