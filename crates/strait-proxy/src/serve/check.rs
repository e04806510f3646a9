//! Check of stored bodies against their hashes, before a hit sends them. By default a body is
//! checked once after each start of the proxy: its bytes may have been damaged while it was
//! stopped. The worker reads a body in pieces and serves other clients between them.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use strait_store::{Record, Stores};

use crate::cache::object::Object;
use crate::cache::worker::Worker;
use crate::config::file::CheckHits;

/// Longest body that is checked before its first byte is sent: a longer one delays its client too
/// long. Bodies beyond it have files of their own, which the scrub checks first.
pub(crate) const AHEAD_BYTES_MAX: u64 = 64 << 20;
/// Interval of looks at a check that another request does.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Checks the stored parts of an object that are due. Returns false if one is damaged, or cannot be
/// read, or has gone: the object cannot answer.
pub(crate) async fn is_sound(worker: &Worker, object: &Object) -> bool {
    let Some(store) = &worker.shared.store else { return true };
    let mode = worker.settings().check_hits;
    for record in object.due_for_check(mode) {
        if record.body_len() <= AHEAD_BYTES_MAX && !is_right(store, record, mode).await {
            return false;
        }
    }
    true
}

/// Checks a record. If another request checks it, waits for that check instead, so that many
/// requests for one object read it once.
async fn is_right(store: &Stores, record: &Arc<Record>, mode: CheckHits) -> bool {
    let is_once = mode == CheckHits::First;
    let claim = loop {
        let claim = record.begin_check();
        if claim.is_some() || !is_once {
            break claim;
        }
        Box::pin(tokio::time::sleep(LOOK_EVERY)).await;
    };
    if is_once && record.is_checked() {
        return true;
    }
    let mut check = store.check(record);
    let is_right = loop {
        match store.check_next(&mut check) {
            Ok(false) => tokio::task::yield_now().await,
            Ok(true) => break true,
            Err(_) => break false,
        }
    };
    drop(claim);
    is_right
}

/// Returns the record of a body that is too long for a check ahead, if `range` is all of it and its
/// check is due. It is checked while it is sent.
pub(crate) fn due_while_sent<'o>(
    object: &'o Object,
    range: &Range<u64>,
    mode: CheckHits,
) -> Option<&'o Arc<Record>> {
    let record = object.due_for_check(mode).next()?;
    let is_all = *range == (0..record.body_len()) && object.length == Some(range.end);
    (is_all && record.body_len() > AHEAD_BYTES_MAX).then_some(record)
}
