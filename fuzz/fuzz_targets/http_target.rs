//! Fuzzes request targets, Location, Content-Range and Host: a normalised key is stable, and no
//! other origin's object is invalidated.
//!
//! Input: a byte for the method, then the text.

#![no_main]

use libfuzzer_sys::fuzz_target;
use strait_http::partial::ContentRange;
use strait_http::target::{Authority, Target, Uri};
use strait_http::{Field, Fields, invalidation};

fuzz_target!(|data: &[u8]| {
    let Some((method, text)) = data.split_first() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let method = ["GET", "CONNECT", "OPTIONS", "POST"][usize::from(method % 4)];
    if let Ok(Target::Absolute(uri)) = Target::parse(method, text) {
        let key = key(&uri);
        let again = Uri::parse(&key).expect("a key is a URI");
        assert!(again.is_same_origin(&uri) && self::key(&again) == key);
    }
    if let Ok(authority) = Authority::parse(text) {
        assert_eq!(Authority::parse(&authority.to_string()), Ok(authority));
    }
    let named: Fields<'_> = [Field { name: "location", value: text.as_bytes() }].into_iter().collect();
    let base = Uri::parse("http://a/b/c?d").expect("it is a URI");
    let keys = invalidation::invalidated("POST", &base, 200, &named);
    assert!(keys.len() <= 2 && keys.iter().all(|key| key.starts_with("http://a/")));
    if let Some(ContentRange::Part(part, complete)) = ContentRange::parse(text) {
        assert!(part.start < part.end && complete.is_none_or(|complete| part.end <= complete));
    }
});

fn key(uri: &Uri<'_>) -> String {
    let mut key = String::new();
    uri.write_key(&mut key);
    key
}
