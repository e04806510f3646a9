//! A store on disk, requested in one thread.

use std::path::Path;
use std::sync::Arc;

use strait_store::{Config, Store, hash_of};

use super::ratios::Ratios;
use super::trace::{Request, Trace};
use crate::error::{Error, Result};
use crate::results::Figures;

/// Longest body that is written.
const BODY_BYTES_MAX: usize = 16 << 20;
/// Requests every object of the trace, and stores those that are missing.
pub(super) fn run(trace: &Trace, capacity_bytes: u64, dir: &Path) -> Result<Figures> {
    let dir = dir.join(format!("strait-store-{}", std::process::id()));
    let config = Config { capacity_bytes, sync_every: None, ..Config::new(&dir) };
    let figures = Store::open(config).map_err(|error| Error::Invalid(error.to_string())).map(|store| {
        let figures = request_all(&store, trace);
        store.close();
        figures
    });
    let _ = std::fs::remove_dir_all(&dir);
    figures
}

fn request_all(store: &Arc<Store>, trace: &Trace) -> Figures {
    let body = vec![0; BODY_BYTES_MAX];
    let (mut ratios, mut new_bytes, mut failed) = (Ratios::default(), 0, 0_u64);
    for &Request { object, bytes } in trace {
        let key = object.to_le_bytes();
        let found = store.find(hash_of(&key));
        ratios.count(bytes, !found.is_empty());
        if let Some(record) = found.first() {
            store.touch(record);
            continue;
        }
        match store.put(0, &key, b"", &[&body[..(bytes as usize).min(BODY_BYTES_MAX)]]) {
            Ok(_) => new_bytes += bytes,
            Err(_) => failed += 1,
        }
    }
    let stats = store.stats();
    let mut figures = ratios.with_writes(new_bytes, stats.reinserted_bytes);
    figures.insert("failed".to_owned(), failed as f64);
    figures.insert("used_percent".to_owned(), 100.0 * stats.used_bytes as f64 / stats.capacity_bytes as f64);
    figures
}
