//! Sends bytes in memory by copy or by zero-copy.

use std::cell::RefCell;
use std::io::IoSlice;

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, send, sendmsg};
use smallvec::{SmallVec, smallvec};
use strait_os::clock::thread_cpu_time;
use strait_sys::buffer::Frozen;

use super::Current;
use super::destination::{Destination, Step};
use crate::engine::{Engine, Tally, ZeroCopySend};
use crate::error::{Error, Result};
use crate::plan::{PIECES_MAX, Piece, Pieces, Run, Views};

const OPERATION: &str = "send to";

/// Run of copied pieces.
#[derive(Debug)]
pub(crate) struct CopyRun {
    pieces: Pieces,
    /// Index of the first incomplete piece, and the sent bytes of it.
    at: usize,
    offset: usize,
    /// True if the pieces could go by zero-copy; then the cost of the copy is measured.
    may_zero_copy: bool,
}

impl CopyRun {
    pub(super) fn new(pieces: Pieces) -> Self {
        Self { pieces, at: 0, offset: 0, may_zero_copy: false }
    }

    pub(super) fn step(&mut self, to: &Destination<'_>) -> Result<Step> {
        let more = if to.more { SendFlags::MORE } else { SendFlags::empty() };
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL | more;
        let began = (self.may_zero_copy && to.route.borrow().wants_cost(self.left())).then(thread_cpu_time);
        let (asked, sent) = self.send(to, flags);
        let sent = match sent {
            Ok(sent) => sent,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(Step::NoRoom),
            Err(error) => return Err(Error::os(OPERATION, to.peer, error)),
        };
        if let Some(began) = began {
            to.route.borrow_mut().cost(asked, sent, false, thread_cpu_time().saturating_sub(began));
        }
        to.tally.borrow_mut().account.sent += sent as u64;
        self.advance(sent);
        Ok(if self.at == self.pieces.len() {
            Step::Done
        } else if sent < asked {
            Step::NoRoom
        } else {
            Step::Moved
        })
    }

    /// Returns the remaining bytes.
    fn left(&self) -> usize {
        self.pieces[self.at..].iter().map(|piece| piece.len()).sum::<usize>() - self.offset
    }

    /// Sends pieces. Returns the offered bytes and the accepted bytes.
    fn send(&self, to: &Destination<'_>, flags: SendFlags) -> (usize, Result<usize, Errno>) {
        if let [piece] = &self.pieces[self.at..] {
            let piece = &piece[self.offset..];
            return (piece.len(), send(to.socket, piece, flags));
        }
        let mut slices: SmallVec<[IoSlice<'_>; 16]> = SmallVec::new();
        let mut asked = 0;
        for (number, piece) in self.pieces[self.at..].iter().take(PIECES_MAX).enumerate() {
            let piece = if number == 0 { &piece[self.offset..] } else { &piece[..] };
            asked += piece.len();
            slices.push(IoSlice::new(piece));
        }
        (asked, sendmsg(to.socket, &slices, &mut SendAncillaryBuffer::default(), flags))
    }

    fn advance(&mut self, mut sent: usize) {
        while let Some(piece) = self.pieces.get(self.at) {
            let left = piece.len() - self.offset;
            if sent < left {
                self.offset += sent;
                return;
            }
            sent -= left;
            (self.at, self.offset) = (self.at + 1, 0);
        }
    }
}

/// Run of zero-copy sends.
#[derive(Debug)]
pub(crate) struct ZeroCopyRun {
    /// Remaining views; the first is cut where the last send ended.
    views: Views,
}

/// Sends `bytes` by copy. Returns a run of the rest; `piece` owns the bytes.
pub(super) fn start_copy(
    bytes: &[u8],
    piece: impl FnOnce() -> Piece,
    engine: &mut Engine,
    to: &Destination<'_>,
) -> Result<Option<Current>> {
    engine.collect()?;
    let sent = match send(to.socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
        Ok(sent) => sent,
        Err(Errno::AGAIN | Errno::INTR) => 0,
        Err(error) => return Err(Error::os(OPERATION, to.peer, error)),
    };
    to.tally.borrow_mut().account.sent += sent as u64;
    if sent == bytes.len() {
        return Ok(None);
    }
    Ok(Some(Current::Copy(CopyRun { offset: sent, ..CopyRun::new(smallvec![piece()]) })))
}

/// Sends a view by zero-copy, or begins to copy it. Returns a run of the rest.
pub(super) fn start_zero_copy(
    view: &Frozen,
    engine: &mut Engine,
    to: &Destination<'_>,
) -> Result<Option<Current>> {
    Ok(match submit(std::slice::from_ref(view), engine, to)? {
        Some(taken) if taken == view.len() => None,
        Some(taken) => Some(Current::ZeroCopy(ZeroCopyRun::new(smallvec![view.slice(taken..view.len())]))),
        None => Some(Current::Copy(ZeroCopyRun::new(smallvec![view.clone()]).copy())),
    })
}

/// Sends views by zero-copy. Returns the accepted bytes; `None` if they must be copied.
fn submit(views: &[Frozen], engine: &mut Engine, to: &Destination<'_>) -> Result<Option<usize>> {
    match engine.send_zero_copy(to.socket, views, to.more, (to.ends, to.route), to.tally)? {
        ZeroCopySend::Copy => Ok(None),
        ZeroCopySend::NoRoom => Ok(Some(0)),
        ZeroCopySend::Taken(taken) => Ok(Some(taken)),
        ZeroCopySend::Failed(errno) => Err(Error::os(OPERATION, to.peer, Errno::from_raw_os_error(errno))),
    }
}

/// Begins a run of small pieces and zero-copy buffers: copies the pieces into one buffer, which
/// goes first. If no buffer has space, the pieces are sent separately, and the returned run of the
/// buffers follows.
pub(super) fn gather(
    pieces: Pieces,
    views: Views,
    engine: &mut Engine,
    tally: &RefCell<Tally>,
) -> (Current, Option<Run>) {
    let bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
    if bytes == 0 {
        return (Current::ZeroCopy(ZeroCopyRun::new(views)), None);
    }
    let Some(view) = engine.gather_in_buffer(pieces.iter().map(|piece| &**piece), bytes) else {
        tally.borrow_mut().account.fall_back("no buffer for small pieces");
        let rest = Run::ZeroCopy { gathered: Pieces::new(), views };
        return (Current::Copy(CopyRun::new(pieces)), Some(rest));
    };
    tally.borrow_mut().account.gathered += bytes as u64;
    (Current::ZeroCopy(ZeroCopyRun::new(std::iter::once(view).chain(views).collect())), None)
}

impl ZeroCopyRun {
    fn new(views: Views) -> Self {
        Self { views }
    }

    /// Moves bytes; returns `None` if the rest must be copied.
    pub(super) fn step(&mut self, engine: &mut Engine, to: &Destination<'_>) -> Result<Option<Step>> {
        let Some(taken) = submit(&self.views, engine, to)? else { return Ok(None) };
        self.advance(taken);
        Ok(Some(if self.views.is_empty() { Step::Done } else { Step::NoRoom }))
    }

    fn advance(&mut self, mut taken: usize) {
        let whole = self.views.iter().take_while(|view| {
            let is_whole = view.len() <= taken;
            taken -= if is_whole { view.len() } else { 0 };
            is_whole
        });
        let whole = whole.count();
        drop(self.views.drain(..whole));
        if let Some(first) = self.views.first_mut() {
            *first = first.slice(taken..first.len());
        }
    }

    /// Returns the rest as a copying run.
    pub(super) fn copy(&mut self) -> CopyRun {
        let pieces = std::mem::take(&mut self.views).into_iter().map(Piece::Shared).collect();
        CopyRun { may_zero_copy: true, ..CopyRun::new(pieces) }
    }
}
