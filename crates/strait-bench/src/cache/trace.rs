//! Synthetic traces. A trace is determined by the capacity of the cache and its own length.

use crate::proxy::object::mix_bits;
use crate::proxy::workload::{Sizes, unit};

/// Request for an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Number of the object.
    pub object: u64,
    /// Bytes of the object.
    pub bytes: u64,
}

/// Requests in order.
pub type Trace = Vec<Request>;

/// Generator: takes the capacity in bytes and the number of requests.
pub type Generator = fn(u64, usize) -> Trace;

/// All traces. Objects have 16 KiB, except those of PolyMix.
pub const TRACES: [(&str, Generator); 9] = [
    ("zipf-0.7", |capacity, requests| zipf(0.7, 3 * fitting(capacity), requests, OBJECT)),
    ("zipf-0.9", |capacity, requests| zipf(0.9, 3 * fitting(capacity), requests, OBJECT)),
    ("zipf-1.1", |capacity, requests| zipf(1.1, 3 * fitting(capacity), requests, OBJECT)),
    ("zipf-0.9-wide", |capacity, requests| zipf(0.9, 20 * fitting(capacity), requests, OBJECT)),
    ("scans", scans),
    ("loop", looped),
    ("shift", shifting),
    ("polymix", |capacity, requests| zipf(0.9, 5 * capacity / POLYMIX_BYTES, requests, Sizes::PolyMix)),
    ("phases", phases),
];

/// Size of most objects.
const OBJECT_BYTES: u64 = 16 << 10;
const OBJECT: Sizes = Sizes::Fixed(OBJECT_BYTES);
/// Mean size of PolyMix.
const POLYMIX_BYTES: u64 = 11_000;
/// Objects above this number are requested once.
const ONCE: u64 = 1 << 40;

/// Number of objects that fit a cache.
fn fitting(capacity_bytes: u64) -> u64 {
    capacity_bytes / OBJECT_BYTES
}

/// Ranks with the frequencies of Zipf's law.
struct Ranks(Vec<f64>);

impl Ranks {
    fn new(exponent: f64, objects: u64) -> Self {
        let mut sum = 0.0;
        let mut sums: Vec<f64> = (1..=objects)
            .map(|rank| {
                sum += (rank as f64).powf(-exponent);
                sum
            })
            .collect();
        for part in &mut sums {
            *part /= sum;
        }
        Self(sums)
    }

    /// Returns the rank of draw `number`, from 0.
    fn draw(&self, number: usize) -> u64 {
        let share = unit(number as u64, 0);
        (self.0.partition_point(|sum| *sum < share) as u64).min(self.0.len() as u64 - 1)
    }
}

/// Independent requests with the frequencies of Zipf's law.
fn zipf(exponent: f64, objects: u64, requests: usize, sizes: Sizes) -> Trace {
    let ranks = Ranks::new(exponent, objects);
    let request = |number| {
        let object = ranks.draw(number);
        Request { object, bytes: sizes.of(object) }
    };
    (0..requests).map(request).collect()
}

/// Requests by Zipf's law; half of the time, every other one is for an object that is never
/// requested again.
fn scans(capacity_bytes: u64, requests: usize) -> Trace {
    let objects = 3 * fitting(capacity_bytes);
    let ranks = Ranks::new(0.9, objects);
    let request = |number: usize| {
        let is_scan = (number as u64 / objects) % 2 == 1 && number % 2 == 1;
        let object = if is_scan { ONCE + number as u64 } else { ranks.draw(number) };
        Request { object, bytes: OBJECT_BYTES }
    };
    (0..requests).map(request).collect()
}

/// All objects in order, again and again; a fifth more than fit.
fn looped(capacity_bytes: u64, requests: usize) -> Trace {
    let objects = fitting(capacity_bytes) * 6 / 5;
    (0..requests as u64).map(|number| Request { object: number % objects, bytes: OBJECT_BYTES }).collect()
}

/// Requests by Zipf's law, with other objects at a part of the ranks after every few requests.
fn shifting(capacity_bytes: u64, requests: usize) -> Trace {
    let objects = 3 * fitting(capacity_bytes);
    let ranks = Ranks::new(0.9, objects);
    let request = |number: usize| {
        let shift = number as u64 / (objects / 2) * (objects / 50);
        let object = (mix_bits(ranks.draw(number)) % objects + shift) % objects;
        Request { object, bytes: OBJECT_BYTES }
    };
    (0..requests).map(request).collect()
}

/// A steady phase, a shifting one and a loop.
fn phases(capacity_bytes: u64, requests: usize) -> Trace {
    let third = requests / 3;
    let mut trace = zipf(0.9, 3 * fitting(capacity_bytes), third, OBJECT);
    trace.extend(shifting(capacity_bytes, third));
    trace.extend(looped(capacity_bytes, requests - 2 * third));
    trace
}
