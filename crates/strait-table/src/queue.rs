//! Bounded queues to threads.

use std::sync::mpsc::{SyncSender, TrySendError};

use crate::error::TableError;

/// Sends work to a thread. Returns it if the queue is full; with `waits`, waits instead.
///
/// # Errors
/// The thread has ended, or there is no sender any more.
pub(crate) fn send<T>(sender: Option<&SyncSender<T>>, task: T, waits: bool) -> Result<Option<T>, TableError> {
    let Some(sender) = sender else { return Err(TableError::ThreadEnded) };
    if waits {
        return sender.send(task).map(|()| None).map_err(|_| TableError::ThreadEnded);
    }
    match sender.try_send(task) {
        Ok(()) => Ok(None),
        Err(TrySendError::Full(task)) => Ok(Some(task)),
        Err(TrySendError::Disconnected(_)) => Err(TableError::ThreadEnded),
    }
}
