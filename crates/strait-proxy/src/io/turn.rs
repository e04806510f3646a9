//! Turns of the tasks of a thread. The runtime ends a turn after 128 operations
//! ([`tokio::task::coop`]). The socket of a fast peer is always ready, and one operation can move a
//! megabyte: therefore bytes count as operations, too.

use tokio::task::coop::consume_budget;

/// Bytes that count as one operation: a turn moves about 2 MiB.
const UNIT_BYTES: u64 = 16 << 10;

/// Counts an operation that moved `bytes`. Lets the other tasks of the thread run if that ends the
/// turn.
pub(crate) async fn count(bytes: u64) {
    for _ in 0..=bytes / UNIT_BYTES {
        consume_budget().await;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use tokio::task::{LocalSet, spawn_local, yield_now};

    use super::*;

    #[tokio::test]
    async fn other_tasks_run_while_a_long_body_is_sent() {
        LocalSet::new()
            .run_until(async {
                let turns = Rc::new(Cell::new(0));
                let other = turns.clone();
                let other = spawn_local(async move {
                    loop {
                        other.set(other.get() + 1);
                        yield_now().await;
                    }
                });
                let sender = spawn_local(async {
                    for _ in 0..32 {
                        count(1 << 20).await;
                    }
                });
                sender.await.unwrap();
                other.abort();
                assert!(turns.get() >= 16, "{} turns", turns.get());
            })
            .await;
    }
}
