//! The cache: stored responses in memory and on disk, and fills on their way into it.

pub(crate) mod compressor;
pub(crate) mod contents;
pub(crate) mod deferred;
pub(crate) mod disk;
pub(crate) mod fill;
pub(crate) mod fill_costs;
pub(crate) mod fill_guard;
mod fill_sink;
pub(crate) mod fill_task;
pub(crate) mod fills;
mod followers;
pub(crate) mod forms;
pub(crate) mod generation;
pub(crate) mod hash;
pub(crate) mod hit_for_miss;
pub(crate) mod invalidation;
pub(crate) mod memory;
pub(crate) mod meta;
pub(crate) mod object;
pub(crate) mod pattern;
pub(crate) mod remainder;
pub(crate) mod removals;
pub(crate) mod scans;
pub(crate) mod select;
pub(crate) mod tag;
pub(crate) mod worker;
