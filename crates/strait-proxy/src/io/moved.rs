//! Bytes sent to a peer, by mechanism.

/// Bytes sent on a socket, by mechanism.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moved {
    /// Copied from memory.
    pub(crate) sent: u64,
    /// Of those, bytes encrypted in user space.
    pub(crate) encrypted: u64,
    /// From a file's pages (sendfile).
    pub(crate) sendfile: u64,
    /// From another socket, through a pipe (splice).
    pub(crate) spliced: u64,
    /// Bytes outside bodies: heads of responses, chunk framing, trailers.
    pub(crate) overhead: u64,
}

impl Moved {
    /// Counts bytes copied from memory.
    pub(crate) fn copied(&mut self, bytes: u64, is_encrypted_here: bool) {
        self.sent += bytes;
        if is_encrypted_here {
            self.encrypted += bytes;
        }
    }

    /// Counts copied bytes of a body, and copied bytes outside bodies.
    pub(crate) fn add(&mut self, body: usize, overhead: usize, is_encrypted_here: bool) {
        self.copied((body + overhead) as u64, is_encrypted_here);
        self.overhead += overhead as u64;
    }

    /// Returns the bytes sent since `before`.
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            sent: self.sent - before.sent,
            encrypted: self.encrypted - before.encrypted,
            sendfile: self.sendfile - before.sendfile,
            spliced: self.spliced - before.spliced,
            overhead: self.overhead - before.overhead,
        }
    }
}
