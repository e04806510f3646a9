//! Lines of a key log (RFC 9850 s2; Firefox Source Docs, "NSS Key Log Format").

/// Maximum bytes of a label; the longest ones have 31.
const LABEL_BYTES_MAX: usize = 64;
/// Digits of a client random.
const RANDOM_DIGITS: usize = 64;
/// Digits of the start of an encrypted premaster secret, with the label `RSA`.
const ENCRYPTED_DIGITS: usize = 16;
/// Digits of a master secret of TLS 1.2 and older, and of the longest secret of TLS 1.3.
const MASTER_DIGITS: usize = 96;
/// Minimum digits of another secret.
const SECRET_DIGITS_MIN: usize = 32;

/// Kind of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// An empty line or a comment.
    Blank,
    Secret,
    Malformed,
}

/// Returns the kind of a line without its end. Readers ignore unknown labels, so they are accepted.
pub(super) fn kind_of(line: &[u8]) -> Kind {
    if line.is_empty() || line.starts_with(b"#") {
        return Kind::Blank;
    }
    let mut words = line.split(|byte| *byte == b' ');
    let (label, random, secret) = (words.next(), words.next(), words.next());
    match (label, random, secret, words.next()) {
        (Some(label), Some(random), Some(secret), None) if is_secret(label, random, secret) => Kind::Secret,
        _ => Kind::Malformed,
    }
}

/// Returns true if a line is a secret to which no digit can be missing. Those of TLS 1.3 have 64 or
/// 96 digits, so that a part of a line can have the form of a whole one.
pub(super) fn is_whole(line: &[u8]) -> bool {
    let secret = line.rsplit(|byte| *byte == b' ').next();
    let has_all = !line.starts_with(b"ECH_CONFIG ") && secret.is_some_and(|it| it.len() == MASTER_DIGITS);
    has_all && kind_of(line) == Kind::Secret
}

fn is_secret(label: &[u8], random: &[u8], secret: &[u8]) -> bool {
    let is_label = |byte: &u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || *byte == b'_';
    let (random_digits, is_length) = match label {
        b"RSA" => (ENCRYPTED_DIGITS, secret.len() == MASTER_DIGITS),
        b"CLIENT_RANDOM" => (RANDOM_DIGITS, secret.len() == MASTER_DIGITS),
        _ => (RANDOM_DIGITS, secret.len() >= SECRET_DIGITS_MIN && secret.len().is_multiple_of(2)),
    };
    (1..=LABEL_BYTES_MAX).contains(&label.len())
        && label.iter().all(is_label)
        && random.len() == random_digits
        && is_length
        && random.iter().chain(secret).all(u8::is_ascii_hexdigit)
}
