//! Scans of all stored heads, for purges by tag. One runs at a time, because each keeps a processor
//! busy for as long as the store is large; the others wait, up to a limit.

use std::sync::Arc;

use tokio::sync::Semaphore;

/// Maximum of scans that run or wait.
const SCANS_MAX: usize = 64;

/// Turns of scans.
#[derive(Debug)]
pub(crate) struct Scans {
    places: Arc<Semaphore>,
    turn: Arc<Semaphore>,
}

/// Reason why a scan has no result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ScanError {
    #[error("{SCANS_MAX} purges are waiting; repeat the request")]
    Full,
    #[error("the purge was interrupted")]
    Interrupted,
}

impl ScanError {
    /// Returns the status of the response.
    pub(crate) fn status(&self) -> u16 {
        match self {
            Self::Full => 503,
            Self::Interrupted => 500,
        }
    }
}

impl Default for Scans {
    fn default() -> Self {
        Self { places: Arc::new(Semaphore::new(SCANS_MAX)), turn: Arc::new(Semaphore::new(1)) }
    }
}

impl Scans {
    /// Runs a scan on another thread in its turn. It goes on if the caller does not wait for it.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        scan: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ScanError> {
        let place = self.places.clone().try_acquire_owned().map_err(|_| ScanError::Full)?;
        let turn = self.turn.clone().acquire_owned().await.map_err(|_| ScanError::Interrupted)?;
        let done = tokio::task::spawn_blocking(move || {
            let result = scan();
            drop((turn, place));
            result
        });
        done.await.map_err(|_| ScanError::Interrupted)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn one_scan_runs_at_a_time_and_a_limited_number_waits() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (scans, running, most) =
            (Arc::new(Scans::default()), Arc::new(AtomicUsize::new(0)), Arc::default());
        let start = Arc::new(Barrier::new(2));
        runtime.block_on(async {
            let mut all = tokio::task::JoinSet::new();
            for number in 0..SCANS_MAX {
                let (scans, running, most) = (scans.clone(), running.clone(), Arc::clone(&most));
                let start = (number == 0).then(|| start.clone());
                let scan = move || {
                    AtomicUsize::fetch_max(
                        &most,
                        running.fetch_add(1, Ordering::SeqCst) + 1,
                        Ordering::SeqCst,
                    );
                    if let Some(start) = start {
                        start.wait();
                    }
                    running.fetch_sub(1, Ordering::SeqCst);
                    number
                };
                all.spawn(async move { scans.run(scan).await });
                tokio::task::yield_now().await;
            }
            assert_eq!(scans.run(|| 0).await.unwrap_err().status(), 503);
            start.wait();
            let mut numbers: Vec<_> = all.join_all().await.into_iter().map(Result::unwrap).collect();
            numbers.sort_unstable();
            assert!(numbers.into_iter().eq(0..SCANS_MAX));
            assert_eq!((most.load(Ordering::SeqCst), scans.run(|| 7).await.unwrap()), (1, 7));
        });
    }
}
