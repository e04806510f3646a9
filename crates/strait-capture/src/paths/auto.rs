//! The `auto` path: the best packet-socket path that the kernel has.
//!
//! V3 is the best: its blocks need the least CPU time per frame, and with the doorbell its delay is
//! that of V2. On architectures where the open block cannot be read there is no doorbell, and V2
//! has the shorter delay. AF_XDP is never selected, because captured frames would not reach the
//! host.

use rustix::io::Errno;
use strait_sys::packet::v3::READS_EARLY;

use super::request::Request;
use super::spec::{About, Opened};
use super::{AnyEngine, Path};
use crate::error::Error;
use crate::paths::packet::ABOUT as PACKET;
use crate::wait::Wait;

/// Description of the path.
pub(super) const ABOUT: About = About { name: "auto", path: "auto", ..PACKET };

/// Opens the best path; the errors of the paths tried before become notes.
pub(super) fn open(request: &Request<'_>) -> Result<Opened<AnyEngine>, Error> {
    let is_v2_faster = request.options.wait == Wait::Latency && !READS_EARLY;
    let order = if is_v2_faster { [Path::V2, Path::V3] } else { [Path::V3, Path::V2] };
    let mut notes = Vec::new();
    for path in order {
        match path.open(request) {
            Err(Error::System(error)) if !is_final(&error) => notes.push(error.to_string()),
            opened => return opened.map(|opened| with_notes(notes, opened)),
        }
    }
    Path::Recv.open(request).map(|opened| with_notes(notes, opened))
}

fn with_notes(mut notes: Vec<String>, mut opened: Opened<AnyEngine>) -> Opened<AnyEngine> {
    notes.append(&mut opened.notes);
    opened.notes = notes;
    opened
}

/// Returns true if another packet-socket path would fail with the same error.
fn is_final(error: &strait_sys::Error) -> bool {
    !error.is_one_of(&[Errno::INVAL, Errno::NOPROTOOPT])
}
