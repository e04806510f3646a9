//! Workloads with names, each a question that is asked of every proxy.

use super::workload::{Sizes, Workload};

/// A workload with a name.
#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    /// Its name.
    pub name: String,
    /// What is asked.
    pub workload: Workload,
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Connections of works with small objects, and with large ones.
const MANY: u32 = 32;
const FEW: u32 = 8;

/// A work as the table below has it: name, bytes, connections, objects that are repeated, cacheable.
type Row = (&'static str, u64, u32, u32, bool);

/// Hits of one size; over more than a processor's cache, so that every byte comes from memory; misses that are not stored, and
/// misses that are. Where nothing is repeated all are misses.
const WORKS: [Row; 10] = [
    ("hit-4k", 4 * KIB, MANY, 4096, true),
    ("hit-16k", 16 * KIB, MANY, 2048, true),
    ("hit-64k", 64 * KIB, MANY, 512, true),
    ("hit-1m", MIB, FEW, 64, true),
    ("hit-10m", 10 * MIB, FEW, 8, true),
    ("hit-700x1m", MIB, FEW, 700, true),
    ("miss-13k", 13 * KIB, MANY, 0, false),
    ("miss-1m", MIB, FEW, 0, false),
    ("store-13k", 13 * KIB, MANY, 0, true),
    ("store-1m", MIB, FEW, 0, true),
];

/// All works: closed loops, as fast as each proxy goes.
pub fn works() -> Vec<Work> {
    let work = |(name, bytes, connections, objects, cacheable): Row| {
        let hits = if objects > 0 { 1.0 } else { 0.0 };
        let cacheable = f64::from(u8::from(cacheable));
        let sizes = Sizes::Fixed(bytes);
        let workload = Workload { sizes, connections, hits, cacheable, objects, rate: None };
        Work { name: name.into(), workload }
    };
    WORKS.map(work).into()
}
