//! SIGINT and SIGTERM during a query: it ends in order, so that its temporary files are removed.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::{Either, select};
use strait_os::process::on_termination;
use strait_program::Error;

/// Time between two looks at the flag of the signals.
const INTERVAL: Duration = Duration::from_millis(100);

/// Flag of the signals. A second signal ends the process at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interrupt(&'static AtomicBool);

impl Interrupt {
    /// Handles the signals from now on.
    ///
    /// # Errors
    /// They cannot be handled.
    pub(crate) fn on_signals() -> Result<Self, Error> {
        Ok(Self(on_termination()?))
    }

    /// Returns true if there was a signal.
    pub(crate) fn is_set(self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// # Errors
    /// There was a signal.
    pub(crate) fn check(self) -> Result<(), Error> {
        if self.is_set() { Err(interrupted()) } else { Ok(()) }
    }

    /// Returns the output of `work`.
    ///
    /// # Errors
    /// A signal came first.
    pub(crate) async fn or<T>(self, work: impl Future<Output = T>) -> Result<T, Error> {
        let signal = async {
            while !self.is_set() {
                tokio::time::sleep(INTERVAL).await;
            }
        };
        match select(pin!(work), pin!(signal)).await {
            Either::Left((output, _)) => Ok(output),
            Either::Right(_) => Err(interrupted()),
        }
    }
}

fn interrupted() -> Error {
    Error::failed("the query was interrupted")
}
