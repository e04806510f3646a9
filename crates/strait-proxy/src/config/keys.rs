//! Checks of the field names in `cache.key_fields` and `cache.bypass_fields`.
//! [`crate::config::settings`] runs them at each start and reload; strait-http lists the fields
//! that cannot be used.

use std::sync::Arc;

use strait_http::forwarded::Policy;
use strait_http::poisoning::{why_no_bypass, why_no_key};

use crate::config::error::{Error, Result};
use crate::config::file::Cache;

/// Maximum of fields in the key: each stored response has them all.
pub(super) const KEY_FIELDS_MAX: usize = 16;
/// Maximum of bypass fields: each is looked up in each request.
const BYPASS_FIELDS_MAX: usize = 64;

/// Names of the request fields that are part of the keys of a route; in lower case, sorted, without
/// duplicates.
pub(crate) type KeyFields = Arc<[String]>;

/// Returns the fields that are part of every key.
pub(crate) fn key_fields(cache: &Cache) -> Result<KeyFields> {
    let bypass = &cache.bypass_fields;
    let is_bypassed = |name: &str| bypass.iter().any(|other| name.eq_ignore_ascii_case(other));
    let why = |name: &str| match why_no_key(name) {
        None if is_bypassed(name) => Some("requests with this field bypass the cache (cache.bypass_fields)"),
        why => why,
    };
    let names = field_names(&cache.key_fields, KEY_FIELDS_MAX, why);
    names.map(Into::into).map_err(|why| Error::Config(format!("cache.key_fields: {why}")))
}

/// Returns the fields that make a request bypass the cache. A field that `policy` drops from every
/// request is an error.
pub(crate) fn bypass_fields(cache: &Cache, policy: Policy) -> Result<Vec<String>> {
    let why = |name: &str| match why_no_bypass(name) {
        None if policy.drops(name) => Some("this field is dropped from every request (forwarded)"),
        why => why,
    };
    let names = field_names(&cache.bypass_fields, BYPASS_FIELDS_MAX, why);
    names.map_err(|why| Error::Config(format!("cache.bypass_fields: {why}")))
}

/// Returns field names in lower case, sorted, without duplicates, or the reason why they are wrong.
pub(super) fn field_names(
    names: &[String],
    max: usize,
    why_not: impl Fn(&str) -> Option<&'static str>,
) -> std::result::Result<Vec<String>, String> {
    if names.len() > max {
        return Err(format!("{} fields; the maximum is {max}", names.len()));
    }
    if let Some((name, why)) = names.iter().find_map(|name| Some((name, why_not(name)?))) {
        return Err(format!("{name:?}: {why}; remove it"));
    }
    let mut names: Vec<_> = names.iter().map(|name| name.to_ascii_lowercase()).collect();
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_names_are_unique_in_lower_case_and_limited() {
        let of = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let named = Cache { key_fields: of(&["X-Tenant", "Cookie", "x-tenant"]), ..Cache::default() };
        assert_eq!(*key_fields(&named).unwrap(), ["cookie", "x-tenant"]);
        let many = |count: usize| -> Vec<_> { (0..count).map(|number| format!("x-{number}")).collect() };
        let keys = |count| key_fields(&Cache { key_fields: many(count), ..Cache::default() }).map(drop);
        let bypass = |count| {
            bypass_fields(&Cache { bypass_fields: many(count), ..Cache::default() }, Policy::Off).map(drop)
        };
        assert!(keys(KEY_FIELDS_MAX).is_ok() && bypass(BYPASS_FIELDS_MAX).is_ok());
        for error in [keys(KEY_FIELDS_MAX + 1), bypass(BYPASS_FIELDS_MAX + 1)] {
            assert!(error.unwrap_err().to_string().contains("the maximum is"));
        }
    }
}
