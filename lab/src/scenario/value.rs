//! Bytes and texts of scenarios.

use std::time::{Duration, UNIX_EPOCH};

/// Variables in texts: `$ORIGIN` and `$PROXY` are addresses, `$PORT` is the origin's port; `$now`,
/// `$now+5` and `$now-5` are HTTP dates.
#[derive(Clone, Debug)]
pub(super) struct Variables {
    /// `host:port` of the origin.
    pub(super) origin: String,
    /// Port of the origin.
    pub(super) port: u16,
    /// `host:port` of the proxy.
    pub(super) proxy: String,
    /// Time in seconds since 1970.
    pub(super) now: u64,
}

impl Variables {
    /// Replaces the variables in a text.
    pub(super) fn replace(&self, text: &str) -> String {
        let text = text.replace("$ORIGIN", &self.origin).replace("$PROXY", &self.proxy);
        let text = text.replace("$PORT", &self.port.to_string());
        let mut pieces = text.split("$now");
        let mut replaced = pieces.next().unwrap_or_default().to_owned();
        for piece in pieces {
            let digits = |rest: &str| rest.bytes().take_while(u8::is_ascii_digit).count();
            let (sign, rest) = match piece.as_bytes().first() {
                Some(sign @ (b'+' | b'-')) if digits(&piece[1..]) > 0 => (Some(*sign), &piece[1..]),
                _ => (None, piece),
            };
            let number = if sign.is_some() { digits(rest) } else { 0 };
            let seconds = rest[..number].parse().unwrap_or(0);
            let then = if sign == Some(b'-') { self.now - seconds } else { self.now + seconds };
            replaced.push_str(&date(then));
            replaced.push_str(&rest[number..]);
        }
        replaced
    }
}

/// Formats an HTTP date.
pub(super) fn date(seconds: u64) -> String {
    httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(seconds))
}

/// Returns bytes `from..from + count` of an endless text without repetition.
pub(super) fn pattern(from: u64, count: u64) -> Vec<u8> {
    let byte = |at: u64| {
        let mixed = (at >> 3).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ (mixed >> 31)).to_le_bytes()[(at & 7) as usize]
    };
    (from..from + count).map(byte).collect()
}

/// Returns the bytes of a body line: `= text`, `"text with \r
/// "`, `* count` or `* count from first`; None for other lines.
pub(super) fn bytes(line: &str, variables: &Variables) -> Option<Result<Vec<u8>, String>> {
    if let Some(text) = line.strip_prefix('=') {
        return Some(Ok(variables.replace(text.strip_prefix(' ').unwrap_or(text)).into_bytes()));
    }
    if let Some(inside) = line.strip_prefix('"') {
        let inside = inside.strip_suffix('"').ok_or_else(|| "a string without its closing quote".to_owned());
        return Some(inside.and_then(|inside| unescaped(&variables.replace(inside))));
    }
    let rest = line.strip_prefix('*')?;
    let words: Vec<_> = rest.split_whitespace().collect();
    Some(match words[..] {
        [count] => number(count).map(|count| pattern(0, count)),
        [count, "from", first] => number(count).and_then(|count| Ok(pattern(number(first)?, count))),
        _ => Err(format!("neither `* count` nor `* count from first`: {line}")),
    })
}

/// Parses digits with optional underscores.
pub(super) fn number(text: &str) -> Result<u64, String> {
    text.replace('_', "").parse().map_err(|_| format!("{text} is not a number"))
}

/// Resolves the escapes `\r`, `
/// `, `\t`, `\0`, `\\`, `\"` and `\xNN`, and `\{text}*9` for nine times that text.
fn unescaped(text: &str) -> Result<Vec<u8>, String> {
    let (mut bytes, mut rest) = (Vec::new(), text);
    while let Some(at) = rest.find('\\') {
        bytes.extend_from_slice(&rest.as_bytes()[..at]);
        let escape = &rest[at + 1..];
        let (taken, meant) = escaped(escape).ok_or_else(|| format!("an unknown escape: \\{escape}"))?;
        bytes.extend(meant);
        rest = &escape[taken..];
    }
    bytes.extend_from_slice(rest.as_bytes());
    Ok(bytes)
}

/// Returns the length of an escape and its bytes.
fn escaped(text: &str) -> Option<(usize, Vec<u8>)> {
    let one = |byte| Some((1, vec![byte]));
    match text.as_bytes().first()? {
        b'r' => one(b'\r'),
        b'n' => one(b'\n'),
        b't' => one(b'\t'),
        b'0' => one(0),
        byte @ (b'\\' | b'"') => one(*byte),
        b'x' => u8::from_str_radix(text.get(1..3)?, 16).ok().map(|byte| (3, vec![byte])),
        b'{' => {
            let (inside, rest) = text[1..].split_once("}*")?;
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            let times = rest[..digits].parse().ok()?;
            Some((inside.len() + 3 + digits, unescaped(inside).ok()?.repeat(times)))
        }
        _ => None,
    }
}

/// Formats the first bytes for a message.
pub(super) fn shown(bytes: &[u8]) -> String {
    const SHOWN_MAX: usize = 1500;
    let text = bytes[..bytes.len().min(SHOWN_MAX)].escape_ascii().to_string();
    let more = if bytes.len() > SHOWN_MAX { "..." } else { "" };
    format!("{} bytes \"{text}{more}\"", bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables() -> Variables {
        Variables { origin: "127.0.0.1:9".into(), port: 9, proxy: "127.0.0.1:8".into(), now: 784_111_777 }
    }

    #[test]
    fn variables_are_replaced_by_addresses_and_dates() {
        let replaced = variables().replace("http://$ORIGIN/ $PORT $now-7, $now+3; $now");
        let expected = "http://127.0.0.1:9/ 9 Sun, 06 Nov 1994 08:49:30 GMT, Sun, 06 Nov 1994 08:49:40 GMT; \
                        Sun, 06 Nov 1994 08:49:37 GMT";
        assert_eq!(replaced, expected);
    }

    #[test]
    fn body_lines_have_three_forms() {
        let of = |line| bytes(line, &variables());
        assert_eq!(of("= a\\r"), Some(Ok(b"a\\r".to_vec())));
        assert_eq!(of("="), Some(Ok(Vec::new())));
        assert_eq!(of(r#""a\r\n\x00\"\{bc\n}*2!""#), Some(Ok(b"a\r\n\0\"bc\nbc\n!".to_vec())));
        assert_eq!(of("* 3 from 1_000"), Some(Ok(pattern(1000, 3))));
        assert_eq!(pattern(0, 9)[4..], pattern(4, 5));
        assert_eq!(of("A: b"), None);
        for wrong in ["* x", "* 1 to 2", "\"a", r#""\y""#, r#""\{a}""#] {
            assert!(of(wrong).unwrap().is_err(), "{wrong}");
        }
    }
}
