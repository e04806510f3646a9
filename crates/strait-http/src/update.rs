//! What a response that confirms a stored one changes of it (RFC 9111, sections 3.2 and 4.3.4).

use crate::fields::Fields;
use crate::forward::passed_on;

/// Fields without which the stored bytes would be read as something else: they stay as they came with the bytes.
const OF_CONTENT: [&str; 2] = ["content-encoding", "content-range"];

/// The fields of a stored response after a 304: those that the 304 has, in place of the stored ones of their names, and the others as
/// they were. Neither message tells how the body is framed, nor anything of its connection.
pub fn updated<'b>(stored: &Fields<'b>, fresh: &Fields<'b>) -> Fields<'b> {
    let changes = |name: &str| !OF_CONTENT.into_iter().any(|kept| kept.eq_ignore_ascii_case(name));
    let news: Fields<'b> = passed_on(fresh).filter(|field| changes(field.name)).copied().collect();
    let kept = passed_on(stored).filter(|field| !news.has(field.name));
    kept.chain(news.iter()).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::tests::fields;

    #[test]
    fn news_take_the_place_of_what_was_stored_and_the_content_stays_what_it_is() {
        let stored = fields(&[
            ("ETag", "\"a\""),
            ("Warning", "1"),
            ("warning", "2"),
            ("Content-Encoding", "gzip"),
            ("Content-Length", "5"),
            ("Set-Cookie", "a"),
        ]);
        let fresh = fields(&[
            ("Connection", "X"),
            ("X", "hop"),
            ("WARNING", "3"),
            ("Content-Encoding", "br"),
            ("Content-Length", "0"),
            ("Set-Cookie", "b"),
            ("Set-Cookie", "c"),
        ]);
        let expected = fields(&[
            ("ETag", "\"a\""),
            ("Content-Encoding", "gzip"),
            ("WARNING", "3"),
            ("Set-Cookie", "b"),
            ("Set-Cookie", "c"),
        ]);
        assert_eq!(updated(&stored, &fresh), expected);
    }
}
