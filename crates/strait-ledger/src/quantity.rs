//! Numbers with units as users write them: counts (`100k`), sizes (`10GiB`), times (`5m`).
//!
//! Options of all programs and keys of the proxy's configuration are parsed here, so that a text
//! has the same meaning in each.

use std::num::IntErrorKind;
use std::time::Duration;

/// End of the message about a number that does not fit.
pub const TOO_LARGE: &str = "it is too large";

/// Limit of a duration: ten years.
const DURATION_MAX: Duration = Duration::from_hours(87_600);

/// Parses a number as in 5000, 100k or 1.5M. k, M and G are powers of 1000. A fraction of the
/// result is rounded.
///
/// # Errors
/// The text is not a number, or does not fit into 64 bits. The message has the accepted form.
pub fn count(text: &str) -> Result<u64, String> {
    scaled(text, 1, thousands).map_err(|error| error.text(text, "a number, as in 5000 or 100k"))
}

/// Parses a size as in 4096, 100k, 64KiB or 10GiB, in bytes. k, M, G, T, P and E are powers of
/// 1000, Ki, Mi, Gi, Ti, Pi and Ei powers of 1024, and a B may follow. A number without a unit is
/// multiplied by `plain`. A fraction of the result is rounded.
///
/// # Errors
/// The text is not a size, or does not fit into 64 bits. The message has the accepted form.
pub fn bytes(text: &str, plain: u64) -> Result<u64, String> {
    scaled(text, plain, bytes_in).map_err(|error| error.text(text, "a size as in 4096, 100k, 64KiB or 10GiB"))
}

/// Parses a time above 0: seconds, fractions allowed, or with a unit as in 500ms, 10s, 5m, 2h, 1d.
///
/// # Errors
/// The text is not a time, is not above 0, or exceeds ten years. The message has the accepted form.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.parse().ok().or_else(|| {
        let end = text.find(|c: char| c.is_ascii_alphabetic())?;
        let (number, unit) = text.split_at(end);
        Some(number.trim_end().parse::<f64>().ok()? * seconds_in(unit)?)
    });
    let invalid = || format!("'{text}' is not a number of seconds, nor a time as in 500ms, 10s or 5m");
    match Duration::try_from_secs_f64(number.ok_or_else(invalid)?) {
        Ok(duration) if !duration.is_zero() && duration <= DURATION_MAX => Ok(duration),
        _ => Err(format!("'{text}': give a time above 0 and at most ten years (3650d)")),
    }
}

/// Parses numbers and ranges as in `0,2,5-7`, each number once and at most `max`.
///
/// # Errors
/// The text is not such a list. The message has the reason.
pub fn numbers(text: &str, max: u32) -> Result<Vec<u32>, String> {
    let mut numbers = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        for number in number(first, max)?..=number(last, max)? {
            if numbers.contains(&number) {
                return Err(format!("{number} is named twice"));
            }
            numbers.push(number);
        }
    }
    if numbers.is_empty() { Err(format!("{text}: an empty range")) } else { Ok(numbers) }
}

fn number(text: &str, max: u32) -> Result<u32, String> {
    match text.trim().parse() {
        Ok(number) if number <= max => Ok(number),
        Ok(number) => Err(format!("{number} is more than {max}")),
        Err(_) => Err(format!("'{text}' is not a number; write numbers and ranges as in 0,2,5-7")),
    }
}

/// Returns the factor of a decimal suffix.
fn thousands(suffix: &str) -> Option<u64> {
    Some(match suffix {
        "k" | "K" => 1_000,
        "m" | "M" => 1_000_000,
        "g" | "G" => 1_000_000_000,
        _ => return None,
    })
}

/// Returns the bytes of a unit. Units with an i are powers of 1024 (IEC 80000-13).
fn bytes_in(unit: &str) -> Option<u64> {
    let unit = unit.to_ascii_lowercase();
    let prefix = unit.strip_suffix('b').unwrap_or(&unit);
    Some(match prefix {
        "" => 1,
        "k" => 1_000,
        "m" => 1_000_000,
        "g" => 1_000_000_000,
        "t" => 1_000_000_000_000,
        "p" => 1_000_000_000_000_000,
        "e" => 1_000_000_000_000_000_000,
        "ki" => 1 << 10,
        "mi" => 1 << 20,
        "gi" => 1 << 30,
        "ti" => 1 << 40,
        "pi" => 1 << 50,
        "ei" => 1 << 60,
        _ => return None,
    })
}

fn seconds_in(unit: &str) -> Option<f64> {
    Some(match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" | "sec" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return None,
    })
}

/// Reason for which a text is not a quantity.
enum QuantityError {
    /// The number does not fit into 64 bits.
    TooLarge,
    /// There is no number, the suffix is unknown, or a number of single units (`1.5`, `1.5B`) has a
    /// fraction.
    Malformed,
}

impl QuantityError {
    fn text(&self, text: &str, expected: &str) -> String {
        match self {
            Self::TooLarge => format!("'{text}': {TOO_LARGE}"),
            Self::Malformed => format!("'{text}': give {expected}"),
        }
    }
}

/// Parses a number with an optional suffix; `factor_of` returns the factor of a suffix. A number
/// without one is multiplied by `plain`.
fn scaled(text: &str, plain: u64, factor_of: impl Fn(&str) -> Option<u64>) -> Result<u64, QuantityError> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let suffix = suffix.trim_start();
    let factor = if suffix.is_empty() { Some(plain) } else { factor_of(suffix) };
    let factor = factor.ok_or(QuantityError::Malformed)?;
    match number.parse::<u64>().map_err(|error| *error.kind()) {
        Ok(whole) => return whole.checked_mul(factor).ok_or(QuantityError::TooLarge),
        Err(IntErrorKind::PosOverflow) => return Err(QuantityError::TooLarge),
        Err(_) => {}
    }
    if factor == 1 || !number.starts_with(|first: char| first.is_ascii_digit()) {
        return Err(QuantityError::Malformed);
    }
    let product = number.parse::<f64>().map_err(|_| QuantityError::Malformed)? * factor as f64;
    // Below 2^53 a float holds each whole number.
    if product < (1_u64 << 53) as f64 { Ok(product.round() as u64) } else { Err(QuantityError::TooLarge) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_sizes_have_units() {
        assert_eq!((count("10k"), count("7"), count("1.5M")), (Ok(10_000), Ok(7), Ok(1_500_000)));
        for (text, expected) in [
            ("4096", 4096),
            ("100k", 100_000),
            ("10GiB", 10 << 30),
            ("10 GiB", 10 << 30),
            ("1.5KiB", 1536),
            ("3MB", 3_000_000),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(bytes(text, 1), Ok(expected), "{text}");
        }
        assert_eq!((bytes("1.5", 1 << 20), bytes("512KiB", 1 << 20)), (Ok(3 << 19), Ok(512 << 10)));
    }

    #[test]
    fn malformed_quantity_is_refused_with_the_accepted_form() {
        const BAD: [&str; 11] =
            ["", "k", "-1", "1.2.3", "10XB", "10 0", "1e3", "1 k b", ".5k", "1.5", "1.5B"];
        for bad in BAD {
            assert!(bytes(bad, 1).unwrap_err().contains("64KiB"), "{bad}");
            assert!(count(bad).unwrap_err().contains("100k"), "{bad}");
        }
        for large in ["99999999999TiB", "16EiB", "99999999999999999999"] {
            assert!(bytes(large, 1).unwrap_err().ends_with(TOO_LARGE), "{large}");
        }
    }

    #[test]
    fn duration_is_positive_and_finite() {
        assert_eq!(seconds("0.5").unwrap(), Duration::from_millis(500));
        for bad in ["0", "-1", "nan", "inf", "x", "1e30", "0s", "-1s", "5 weeks", "s", "1sm"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn duration_may_have_a_unit() {
        for (text, millis) in [
            ("10s", 10_000),
            ("500ms", 500),
            ("1.5m", 90_000),
            ("2h", 7_200_000),
            ("1 d", 86_400_000),
            ("10", 10_000),
        ] {
            assert_eq!(seconds(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }
}
