//! Parser of dictionaries in structured fields (RFC 9651, sections 3.2 and 4.2).
//!
//! Used for targeted fields, where the type of a value decides if a directive counts (RFC 9213,
//! section 2.1). The parser is strict: any syntax error makes the whole field invalid. It checks
//! all values but keeps only those that a directive can have. It does not panic on any input.

use std::collections::BTreeMap;

/// Value of a member, by type. Types that no directive has are checked, and reduced to their name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Integer(i64),
    Decimal,
    String(String),
    Token,
    ByteSequence,
    Boolean(bool),
    Date,
    DisplayString,
    InnerList,
}

/// Limit of the digits of an Integer (RFC 9651, section 3.3.1).
const INTEGER_DIGITS_MAX: usize = 15;
/// Limits of the digits of a Decimal before and after its point (RFC 9651, section 3.3.2).
const DECIMAL_DIGITS_MAX: (usize, usize) = (12, 3);

/// Parses the joined lines of a field. Returns `None` for invalid input. The last of several
/// members with one key counts.
pub(crate) fn dictionary(text: &str) -> Option<BTreeMap<&str, Value>> {
    let mut input = Input { rest: text };
    let mut members = BTreeMap::new();
    input.skip(&[' ']);
    while !input.is_empty() {
        let key = input.key()?;
        let value = if input.eat('=') { input.member()? } else { Value::Boolean(true) };
        input.parameters()?;
        members.insert(key, value);
        input.skip(&[' ', '\t']);
        if input.is_empty() {
            break;
        }
        input.expect(',')?;
        input.skip(&[' ', '\t']);
        if input.is_empty() {
            return None;
        }
    }
    Some(members)
}

/// Unread part of the text.
struct Input<'t> {
    rest: &'t str,
}

impl<'t> Input<'t> {
    fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    fn skip(&mut self, what: &[char]) {
        self.rest = self.rest.trim_start_matches(what);
    }

    /// Consumes `what` if it comes next.
    fn eat(&mut self, what: char) -> bool {
        let behind = self.rest.strip_prefix(what);
        self.rest = behind.unwrap_or(self.rest);
        behind.is_some()
    }

    fn expect(&mut self, what: char) -> Option<()> {
        self.eat(what).then_some(())
    }

    /// Consumes the longest prefix of such bytes, all of which must be ASCII.
    fn take(&mut self, is_match: impl Fn(u8) -> bool) -> &'t str {
        let end = self.rest.bytes().position(|byte| !byte.is_ascii() || !is_match(byte));
        let (taken, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest;
        taken
    }

    fn next(&mut self) -> Option<char> {
        let mut chars = self.rest.chars();
        let next = chars.next()?;
        self.rest = chars.as_str();
        Some(next)
    }

    /// Parses a key (RFC 9651 s4.2.3.3).
    fn key(&mut self) -> Option<&'t str> {
        if !self.rest.starts_with(|first: char| first.is_ascii_lowercase() || first == '*') {
            return None;
        }
        Some(self.take(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-.*".contains(&byte)))
    }

    /// Skips parameters (RFC 9651 s4.2.3.2). Those of a directive are ignored (RFC 9213, section
    /// 2.1).
    fn parameters(&mut self) -> Option<()> {
        while self.eat(';') {
            self.skip(&[' ']);
            self.key()?;
            if self.eat('=') {
                self.bare_item()?;
            }
        }
        Some(())
    }

    /// Parses a member without the parameters at its end (RFC 9651 s4.2.1.1).
    fn member(&mut self) -> Option<Value> {
        if self.eat('(') { self.inner_list() } else { self.bare_item() }
    }

    /// Parses an inner list after its parenthesis (RFC 9651 s4.2.1.2).
    fn inner_list(&mut self) -> Option<Value> {
        loop {
            self.skip(&[' ']);
            if self.eat(')') {
                return Some(Value::InnerList);
            }
            self.bare_item()?;
            self.parameters()?;
            if !self.rest.starts_with([' ', ')']) {
                return None;
            }
        }
    }

    /// Parses a bare item (RFC 9651 s4.2.3.1).
    fn bare_item(&mut self) -> Option<Value> {
        match *self.rest.as_bytes().first()? {
            b'-' | b'0'..=b'9' => self.number(),
            b'"' => self.string(),
            b'*' | b'a'..=b'z' | b'A'..=b'Z' => Some(self.token()),
            b':' => self.byte_sequence(),
            b'?' => self.boolean(),
            b'@' => self.date(),
            b'%' => self.display_string(),
            _ => None,
        }
    }

    /// Parses an Integer or a Decimal (RFC 9651 s4.2.4).
    fn number(&mut self) -> Option<Value> {
        let is_negative = self.eat('-');
        let digits = self.take(|byte| byte.is_ascii_digit());
        if digits.is_empty() {
            return None;
        }
        if self.eat('.') {
            let fraction = self.take(|byte| byte.is_ascii_digit());
            let is_valid =
                digits.len() <= DECIMAL_DIGITS_MAX.0 && (1..=DECIMAL_DIGITS_MAX.1).contains(&fraction.len());
            return is_valid.then_some(Value::Decimal);
        }
        let number: i64 = (digits.len() <= INTEGER_DIGITS_MAX).then(|| digits.parse().ok())??;
        Some(Value::Integer(if is_negative { -number } else { number }))
    }

    /// Parses a String (RFC 9651 s4.2.5).
    fn string(&mut self) -> Option<Value> {
        self.expect('"')?;
        let mut value = String::new();
        loop {
            match self.next()? {
                '"' => return Some(Value::String(value)),
                '\\' => value.push(self.next().filter(|escaped| matches!(escaped, '"' | '\\'))?),
                char @ ' '..='~' => value.push(char),
                _ => return None,
            }
        }
    }

    /// Parses a Token with a valid first byte (RFC 9651 s4.2.6).
    fn token(&mut self) -> Value {
        self.take(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(&byte));
        Value::Token
    }

    /// Parses a Byte Sequence (RFC 9651 s4.2.7). Missing padding is accepted, as that section asks.
    fn byte_sequence(&mut self) -> Option<Value> {
        self.expect(':')?;
        let digits = self.take(|byte| byte.is_ascii_alphanumeric() || b"+/".contains(&byte)).len();
        let padding = self.take(|byte| byte == b'=').len();
        self.expect(':')?;
        let is_valid = match digits % 4 {
            0 => padding == 0,
            1 => false,
            of_last => padding == 0 || padding == 4 - of_last,
        };
        is_valid.then_some(Value::ByteSequence)
    }

    /// Parses a Boolean (RFC 9651 s4.2.8).
    fn boolean(&mut self) -> Option<Value> {
        self.expect('?')?;
        match self.next()? {
            '0' => Some(Value::Boolean(false)),
            '1' => Some(Value::Boolean(true)),
            _ => None,
        }
    }

    /// Parses a Date (RFC 9651 s4.2.9).
    fn date(&mut self) -> Option<Value> {
        self.expect('@')?;
        matches!(self.number()?, Value::Integer(_)).then_some(Value::Date)
    }

    /// Parses a Display String (RFC 9651 s4.2.10).
    fn display_string(&mut self) -> Option<Value> {
        self.expect('%')?;
        self.expect('"')?;
        let mut bytes = Vec::new();
        loop {
            match self.next()? {
                '"' => return std::str::from_utf8(&bytes).is_ok().then_some(Value::DisplayString),
                '%' => bytes.push(self.hexadecimal()? * 16 + self.hexadecimal()?),
                char @ ' '..='~' => bytes.push(u8::try_from(char).ok()?),
                _ => return None,
            }
        }
    }

    /// Parses a hexadecimal digit in lower case.
    fn hexadecimal(&mut self) -> Option<u8> {
        let digit = self.next().filter(|digit| !digit.is_ascii_uppercase())?.to_digit(16)?;
        u8::try_from(digit).ok()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Value of the only member of a dictionary.
    fn value(text: &str) -> Option<Value> {
        dictionary(&format!("a={text}"))?.remove("a")
    }

    #[test]
    fn values_have_the_type_of_their_syntax() {
        for (text, expected) in [
            ("0", Value::Integer(0)),
            ("-5", Value::Integer(-5)),
            ("999999999999999", Value::Integer(999_999_999_999_999)),
            ("1.5", Value::Decimal),
            ("-123456789012.125", Value::Decimal),
            (r#""a\"\\, b""#, Value::String("a\"\\, b".into())),
            ("\"\"", Value::String(String::new())),
            ("*a/b:c", Value::Token),
            ("Abc", Value::Token),
            ("::", Value::ByteSequence),
            (":aGVsbG8=:", Value::ByteSequence),
            (":aGVsbG8:", Value::ByteSequence),
            ("?0", Value::Boolean(false)),
            ("?1", Value::Boolean(true)),
            ("@1659578233", Value::Date),
            ("@-1", Value::Date),
            ("%\"b%c3%bcro\"", Value::DisplayString),
            ("()", Value::InnerList),
            ("( 1  \"b\";c=?0 d );e", Value::InnerList),
            ("5;b;c=1.0; d=\"e\"", Value::Integer(5)),
        ] {
            assert_eq!(value(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn syntax_error_makes_the_whole_field_invalid() {
        for text in [
            "A=1",
            "1",
            "a,",
            "a, ",
            ",a",
            "a,,b",
            "a b",
            "\ta",
            "a=",
            "a= 1",
            "a =1",
            "a;",
            "a;B",
            "a;b=",
            "&",
            "a=1, &&",
            "a=-",
            "a=--1",
            "a=1.",
            "a=.5",
            "a=1.2345",
            "a=1234567890123.1",
            "a=1234567890123456",
            "a=1e5",
            "a=\"b",
            "a=\"\\b\"",
            "a=\"\\",
            "a=\"b\"c",
            "a=\"\u{7f}\"",
            "a=\"\u{e9}\"",
            "a=\"\t\"",
            "a=b\"",
            "a=?",
            "a=?2",
            "a=?1x",
            "a=:a:",
            "a=:aGVsbG8==:",
            "a=:a=b:",
            "a=:aaaa",
            "a=:a a:",
            "a=@",
            "a=@1.5",
            "a=@b",
            "a=%b",
            "a=%\"%C3\"",
            "a=%\"%c3\"",
            "a=%\"%c\"",
            "a=%\"b",
            "a=(",
            "a=(1",
            "a=(1,2)",
            "a=(1\t2)",
            "a=(1\"b\")",
            "a=((1))",
            "\u{e9}",
            "a=\u{e9}",
        ] {
            assert_eq!(dictionary(text), None, "{text}");
        }
    }

    #[test]
    fn last_member_with_a_key_counts() {
        let members = dictionary(" a=1,\tb ,a=\"c\" , a;d=1,b=?0  ").expect("it is valid");
        assert_eq!(Vec::from_iter(members), [("a", Value::Boolean(true)), ("b", Value::Boolean(false))]);
        assert_eq!(dictionary("   ").map(|members| members.len()), Some(0));
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text in "\\PC*|[a-c*=;,?01\"\\\\:@%() \\t.-]{0,40}") {
            let _ = dictionary(&text);
            let _ = value(&text);
        }

        #[test]
        fn integers_keep_their_value(number in -999_999_999_999_999_i64..=999_999_999_999_999) {
            prop_assert_eq!(value(&number.to_string()), Some(Value::Integer(number)));
        }

        #[test]
        fn strings_keep_their_text(text in "[ -~]{0,40}") {
            let quoted = format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
            prop_assert_eq!(value(&quoted), Some(Value::String(text)));
        }
    }
}
