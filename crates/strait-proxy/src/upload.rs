//! The body of a client's request.

use strait_http::framing::Body;

use crate::buffer::Buffer;
use crate::fetch::{Trouble, origin_gone};
use crate::incoming::{Framed, TOO_LONG};
use crate::passage::{self, Broken, From, What};
use crate::socket::{Gone, Socket};
use crate::worker::Worker;

/// A body that is on its way from a client.
#[derive(Debug)]
pub(crate) struct Upload {
    framed: Framed,
    /// What was read behind the request's head; in the end, what was read behind its body.
    pub(crate) buffer: Buffer,
    /// The client waits to be told that the body is wanted (RFC 9110, section 10.1.1).
    pub(crate) is_expected: bool,
    /// The client knows interim responses.
    pub(crate) takes_interim: bool,
}

impl Upload {
    /// Of a request of which `rest` was read behind the head, with `most` bytes of data at most.
    pub(crate) fn new(body: Body, rest: &[u8], is_expected: bool, takes_interim: bool, most: u64) -> Self {
        let mut buffer = Buffer::default();
        if !rest.is_empty() {
            buffer.room()[..rest.len()].copy_from_slice(rest);
            buffer.grew(rest.len());
        }
        let has_body = body != Body::None;
        // What is here already is not waited for.
        let is_expected = is_expected && has_body && rest.is_empty();
        Self { framed: Framed::limited(body, most), buffer, is_expected, takes_interim }
    }

    /// Whether some of it is still to come.
    pub(crate) fn has_body(&self) -> bool {
        !self.framed.is_over()
    }

    /// Sends it to the origin; `false` where that answered before it had all, or closed.
    pub(crate) async fn send(
        &mut self,
        worker: &Worker,
        client: &mut Socket,
        origin: &mut Socket,
    ) -> Result<bool, Trouble> {
        let what = if self.framed.is_chunked() { What::Chunks } else { What::Data };
        let (buffer, framed) = (&mut self.buffer, &mut self.framed);
        // Trailers of a request stay behind: an origin might put them among its fields.
        let from = From { socket: client, buffer, framed, trailers: None };
        origin.listens = true;
        let passed = passage::pass(worker, from, origin, Vec::new(), what).await;
        origin.listens = false;
        match passed {
            Ok(()) => Ok(true),
            // What it has said before it closed is looked for.
            Err(Broken::To(Gone::Answered | Gone::Closed)) => Ok(false),
            Err(Broken::Malformed(TOO_LONG)) => Err(Trouble::TooLong(worker.settings().request_body_max)),
            Err(Broken::To(gone)) => Err(origin_gone(gone)),
            Err(Broken::From(gone)) => Err(Trouble::Client(gone)),
            Err(Broken::Malformed(error)) => Err(Trouble::Request(error)),
        }
    }
}
