//! Replacement of this process by another one without a refused connection.
//!
//! The program starts the successor with the listening sockets, and calls the steps here as the
//! successor gets ready. `docs/internals/proxy.md` draws the messages.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use rustix::fs::fstat;

use crate::cache::removals::Removals;
use crate::config::error::{Error, Result};
use crate::server::accept::Control;
use crate::server::listen::{ADMIN, OWN};
use crate::server::proxy::{Proxy, on_change};

/// Longest wait for the answer of a worker.
pub(super) const ANSWER_MAX: Duration = Duration::from_secs(5);

impl Proxy {
    /// Returns duplicates of all listening sockets with their names, for
    /// [`Inherited`](crate::Inherited) of the successor.
    ///
    /// # Errors
    /// A worker does not answer, or descriptors are lacking.
    pub fn lend_sockets(&self) -> Result<Vec<(String, OwnedFd)>> {
        let failed = |error| Error::os("pass on", &"the listening sockets", error);
        let (mut lent, mut known) = (Vec::new(), Vec::new());
        for answer in self.ask_workers(Control::Lend) {
            let answer = answer.recv_timeout(ANSWER_MAX);
            // Without one of the sockets its connections would be lost.
            let sockets = answer.unwrap_or_else(|error| Err(std::io::Error::other(error))).map_err(failed)?;
            for (port, socket) in sockets {
                // Workers may share a socket.
                let inode = fstat(&socket).map_err(|errno| failed(errno.into()))?.st_ino;
                if known.contains(&inode) {
                    continue;
                }
                known.push(inode);
                let address = self.addresses.iter().find(|address| address.port == port);
                let name = address.and_then(|address| address.name.clone());
                lent.push((name.unwrap_or_else(|| OWN.to_owned()), socket));
            }
        }
        if let Some((socket, _)) = &self.admin {
            lent.push((ADMIN.to_owned(), socket.try_clone().map_err(failed)?.into()));
        }
        Ok(lent)
    }

    /// Closes the store for the successor, which gets a message by `heir` for each removal from now
    /// on. This process goes on to answer from the stored responses, and stores no others. Blocks
    /// until the disk is done.
    pub fn release_store(&self, heir: OwnedFd) {
        // Before the store is closed, so that each removal either is in the store or is sent.
        self.shared.heir.set(heir);
        for answer in self.ask_workers(Control::Store) {
            // Responses of a worker that hangs are fetched again.
            let _ = answer.recv_timeout(ANSWER_MAX);
        }
        if let Some(store) = &self.shared.store {
            store.close();
        }
    }

    /// Counts a failed upgrade.
    pub fn note_failed_upgrade(&self) {
        self.shared.failed_upgrades.fetch_add(1, Ordering::Relaxed);
    }

    /// Opens the store again after [`Self::release_store`], because the successor has ended.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn take_store_back(&self) -> Result<()> {
        self.shared.heir.end_link();
        let reopened = match &self.shared.store {
            Some(store) => store.reopen(&on_change(self.on_note.clone())).map_err(Error::from),
            None => Ok(()),
        };
        // The successor may have written again the records that were removed meanwhile, as its
        // eviction does.
        for text in self.shared.heir.take_noted() {
            self.shared.carry_out(&text);
        }
        reopened
    }

    /// Accepts nothing more, and reuses no response from now on. Connections end after their next
    /// response, or when `timeouts.drain` has passed: [`Proxy::stop`] waits for that.
    pub fn hand_over(&mut self) {
        self.settings().closing.hand_over();
        self.shared.heir.take_noted();
        self.shared.retire();
        self.site.end();
        for control in self.controls.drain(..) {
            let _ = control.send(Control::HandOver);
        }
        self.admin = None;
    }

    /// Carries out the removals that the replaced process has sent, and those that it sends from
    /// now on. To be called before [`Proxy::open`].
    pub fn adopt(&mut self, removals: Removals) {
        let shared = self.shared.clone();
        removals.apply_to(move |text| shared.carry_out(text));
        self.removals = Some(removals);
    }

    /// Sends each worker a message with a place for its answer.
    fn ask_workers<T>(&self, message: impl Fn(Sender<T>) -> Control) -> Vec<Receiver<T>> {
        let ask = |control: &tokio::sync::mpsc::UnboundedSender<Control>| {
            let (sender, receiver) = channel();
            // Without the worker there is no answer.
            let _ = control.send(message(sender));
            receiver
        };
        self.controls.iter().map(ask).collect()
    }
}
