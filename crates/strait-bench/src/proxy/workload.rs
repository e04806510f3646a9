//! Requests to a proxy, by Web Polygraph's axes (D4): sizes, hit ratio, cacheable ratio,
//! connections, rate.
//!
//! Pure: a workload and a number determine the request, which is the same for every contestant.

use std::fmt;
use std::str::FromStr;

use super::object::{Object, mix_bits};

/// First number of objects that are requested once, above those of repeated ones.
const UNIQUE: u64 = 1 << 40;

/// Load of requests.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// Sizes of the objects.
    pub sizes: Sizes,
    /// Connections, each with one request at a time.
    pub connections: u32,
    /// Share of requests, 0 to 1, for one of the repeated [`Workload::objects`].
    pub hits: f64,
    /// Share of requests, at least `hits`, for cacheable objects. An object that is not a hit is
    /// requested once.
    pub cacheable: f64,
    /// Number of repeated objects, all equally frequent.
    pub objects: u32,
    /// Requests/s at equal intervals, independent of responses; None for a closed loop at the
    /// highest rate.
    pub rate: Option<f64>,
    /// True if each connection is a tunnel to the origin, with requests as long as the bodies.
    pub is_tunnel: bool,
    /// HTTP/2 instead of HTTP/1.1.
    pub http2: Option<Http2>,
}

/// Connections with HTTP/2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Http2 {
    /// Concurrent requests of a connection.
    pub streams: u32,
    /// True with TLS (ALPN), false if the client begins with HTTP/2.
    pub is_tls: bool,
}

/// Sizes of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// All objects have this size in bytes.
    Fixed(u64),
    /// Sizes of Web Polygraph's workload PolyMix-4: exponential sizes of images (65 %, 4.5 KB on
    /// average) and pages (15 %, 8.5 KB), log-normal sizes of downloads (0.5 %, 300 KB) and others
    /// (19.5 %, 25 KB); 11 KB on average.
    PolyMix,
}

/// Part of a mix: its share, the mean of its sizes, and their standard deviation, or None for an
/// exponential distribution.
type Part = (f64, f64, Option<f64>);

const POLYMIX: [Part; 4] = [
    (0.65, 4_500.0, None),
    (0.15, 8_500.0, None),
    (0.005, 300_000.0, Some(300_000.0)),
    (0.195, 25_000.0, Some(10_000.0)),
];
/// Largest object of a mix, in bytes.
const MIXED_BYTES_MAX: f64 = 16e6;

impl Sizes {
    /// Returns the size of the object with this number.
    pub(crate) fn of(self, id: u64) -> u64 {
        match self {
            Self::Fixed(bytes) => bytes,
            Self::PolyMix => polymix(id),
        }
    }
}

fn polymix(id: u64) -> u64 {
    let mut share = unit(id, 1);
    let part = POLYMIX.into_iter().find(|(of_all, ..)| {
        share -= of_all;
        share < 0.0
    });
    let (_, mean, deviation) = part.unwrap_or(POLYMIX[0]);
    let bytes = match deviation {
        None => -mean * unit(id, 2).ln(),
        Some(deviation) => {
            let variance = (deviation / mean).powi(2).ln_1p();
            // Box-Muller transform to a normally distributed number.
            let normal = (-2.0 * unit(id, 2).ln()).sqrt() * (std::f64::consts::TAU * unit(id, 3)).cos();
            (mean.ln() - variance / 2.0 + variance.sqrt() * normal).exp()
        }
    };
    bytes.clamp(1.0, MIXED_BYTES_MAX) as u64
}

/// Returns a pseudo-random number above 0 and up to 1, determined by `value` and `draw`.
pub(crate) fn unit(value: u64, draw: u64) -> f64 {
    let bits = mix_bits(mix_bits(value) ^ draw) >> 11;
    (bits + 1) as f64 / (1_u64 << 53) as f64
}

impl Workload {
    /// Returns the repeated object with this number.
    pub(crate) fn repeated(&self, id: u64) -> Object {
        Object { size: self.sizes.of(id), id, cacheable: true }
    }

    /// Returns the object of request `number`.
    pub(crate) fn request(&self, number: u64) -> Object {
        let share = unit(number, 0);
        if share <= self.hits && self.objects > 0 {
            return self.repeated(mix_bits(number) % u64::from(self.objects));
        }
        let id = UNIQUE + number;
        Object { size: self.sizes.of(id), id, cacheable: share <= self.cacheable }
    }

    /// Returns the due time of request `number`, in nanoseconds after the first.
    pub(crate) fn due_ns(&self, number: u64) -> u64 {
        self.rate.map_or(0, |rate| (number as f64 * 1e9 / rate) as u64)
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(bytes) => write!(f, "{bytes}"),
            Self::PolyMix => f.write_str("polymix"),
        }
    }
}

impl FromStr for Sizes {
    type Err = String;

    /// Parses `polymix`, or a number of bytes with an optional `k` for KiB or `m` for MiB.
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "polymix" {
            return Ok(Self::PolyMix);
        }
        let lower = text.to_ascii_lowercase();
        let (digits, shift) = match lower.strip_suffix(['k', 'm']) {
            Some(digits) => (digits, if lower.ends_with('k') { 10 } else { 20 }),
            None => (lower.as_str(), 0),
        };
        let bytes = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
        bytes
            .map(Self::Fixed)
            .ok_or_else(|| format!("'{text}': give bytes, as in 4096, 4k or 1m, or polymix"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIX: Workload = Workload {
        sizes: Sizes::Fixed(4096),
        connections: 1,
        hits: 0.5,
        cacheable: 0.8,
        objects: 10,
        rate: Some(1000.0),
        is_tunnel: false,
        http2: None,
    };

    #[test]
    fn shares_of_hits_and_cacheable_objects_are_as_requested() {
        let requests: Vec<Object> = (0..100_000).map(|number| MIX.request(number)).collect();
        let share =
            |of: &dyn Fn(&&Object) -> bool| requests.iter().filter(of).count() as f64 / requests.len() as f64;
        assert!((share(&|object| object.id < 10) - 0.5).abs() < 0.01);
        assert!((share(&|object| object.cacheable) - 0.8).abs() < 0.01);
        let mut unique: Vec<u64> =
            requests.iter().map(|object| object.id).filter(|&id| id >= UNIQUE).collect();
        let all = unique.len();
        unique.dedup();
        assert_eq!(unique.len(), all);
    }

    #[test]
    fn hit_ratios_of_one_and_zero_are_exact() {
        let hits = Workload { hits: 1.0, cacheable: 1.0, ..MIX };
        assert!((0..1000).all(|number| hits.request(number).id < 10));
        let misses = Workload { hits: 0.0, cacheable: 0.0, ..MIX };
        assert!(
            (0..1000).all(|number| misses.request(number).id >= UNIQUE && !misses.request(number).cacheable)
        );
    }

    #[test]
    fn mix_has_the_mean_of_its_parts() {
        let count = 200_000;
        let sum: u64 = (0..count).map(|id| Sizes::PolyMix.of(id)).sum();
        let mean = sum as f64 / count as f64;
        let expected: f64 = POLYMIX.iter().map(|(share, mean, _)| share * mean).sum();
        assert!((mean / expected - 1.0).abs() < 0.05, "{mean} instead of {expected}");
    }

    #[test]
    fn requests_are_due_at_equal_intervals() {
        assert_eq!([0, 1, 2500].map(|number| MIX.due_ns(number)), [0, 1_000_000, 2_500_000_000]);
    }

    #[test]
    fn sizes_are_parsed() {
        let fixed = |text: &str| text.parse::<Sizes>();
        assert_eq!(fixed("4k"), Ok(Sizes::Fixed(4096)));
        assert_eq!(fixed("10M"), Ok(Sizes::Fixed(10 << 20)));
        assert_eq!(Sizes::PolyMix.to_string().parse(), Ok(Sizes::PolyMix));
        for wrong in ["", "k", "-1", "4g", "99999999999999999999", "99999999999999999m"] {
            assert!(fixed(wrong).is_err(), "{wrong}");
        }
    }
}
