//! Fill task: moves a body from the origin into the store, at the origin's speed.

use std::ops::Range;
use std::pin::pin;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use strait_http::partial::strong_validator;
use strait_transfer::pipe::Pipe;

use crate::cache::fill::{Fill, Phase, REQUEST_BYTES};
use crate::cache::fill_costs::{MEASURED_BYTES_MIN, with_cpu_time};
use crate::cache::fill_guard::FillGuard;
use crate::cache::fill_sink::{FillError, Sink, reserve, unpublished};
use crate::cache::object::Object;
use crate::cache::remainder::{Held, Remainder};
use crate::cache::worker::Worker;
use crate::config::file::{Abandoned, FillMethod};
use crate::io::framing::{Framed, Piece};
use crate::io::piece::PIECE_BYTES;
use crate::io::socket::SocketError;
use crate::upstream::background::Fetch;
use crate::upstream::incoming::Incoming;
use crate::upstream::pool::Connection;

/// Divisor of the store's capacity: the limit of a stored body of unknown length, and of the bytes
/// by which the fill of a longer one is ahead of its slowest follower.
const UNKNOWN_DIVISOR: u64 = 4;
/// Number of sections with as many bytes as that limit.
const SECTIONS: u64 = 8;
/// Time for which such a fill waits for a slow follower, without a piece that needs no wait
/// between. Then the follower gets no more: one client could hold all others of the fill.
const PATIENCE: Duration = Duration::from_secs(30);
/// Preferred alignment, in the file, of the end of each piece.
const PIECE_ALIGN_BYTES: u64 = 64 << 10;

/// Returns the length of a body for the store if it is whole, short, not chunked, and in the
/// buffer.
pub(crate) fn whole_length(
    worker: &Worker,
    object: &Object,
    incoming: &Incoming,
    range: &Range<u64>,
) -> Option<usize> {
    worker.shared.store.as_ref()?;
    let Framed::Length(length) = incoming.framed else { return None };
    let buffered = incoming.connection.buffer.filled().len();
    let is_whole = *range == (0..length) && object.length == Some(length);
    let is_small = length <= worker.settings().memory_object.min(buffered) as u64;
    (is_whole && is_small).then_some(length as usize)
}

/// Body that is being moved.
#[derive(Debug)]
pub(crate) struct FillTask {
    pub(crate) guard: FillGuard,
    pub(crate) object: Arc<Object>,
    pub(crate) incoming: Box<Incoming>,
    /// Bytes of the representation in this response; `u64::MAX` is an unknown end.
    pub(crate) range: Range<u64>,
    sink: Sink,
    /// Number of stored bytes.
    stored: u64,
    /// Time left to wait for slow followers.
    patience: Duration,
    /// How pieces move, of two methods, and whether the CPU time is measured.
    method: FillMethod,
    is_measured: bool,
}

impl FillTask {
    /// Creates the task of a response. If the store has no space, returns the guard and the
    /// response, which is then forwarded without storing it.
    pub(crate) fn new(
        guard: FillGuard,
        object: Arc<Object>,
        mut incoming: Box<Incoming>,
        range: Range<u64>,
    ) -> Result<Self, (FillGuard, Box<Incoming>)> {
        let worker = &guard.worker;
        let len = range.end - range.start;
        let is_known = range.end < u64::MAX;
        let settings = worker.settings();
        let sink = if !is_known || len <= settings.memory_object as u64 {
            Some(Sink::Memory(Arc::default()))
        } else if len > settings.object_max {
            None
        } else {
            worker
                .shared
                .store
                .as_ref()
                .and_then(|store| reserve(worker, store, &object, range.start, Some(len)))
        };
        match sink {
            Some(sink) => {
                incoming.connection.watch(&worker.upstream());
                // Bytes that the kernel decrypts can only be spliced; those of frames are copied.
                let is_encrypted =
                    incoming.connection.socket.is_encrypted() || !incoming.connection.is_http1();
                let (method, is_measured) =
                    if is_encrypted { (FillMethod::Splice, false) } else { worker.fill_method(len) };
                Ok(Self {
                    guard,
                    object,
                    incoming,
                    range,
                    sink,
                    stored: 0,
                    patience: PATIENCE,
                    method,
                    is_measured,
                })
            }
            None => Err((guard, incoming)),
        }
    }

    /// Returns true if the body goes into memory so far.
    pub(crate) fn is_in_memory(&self) -> bool {
        matches!(self.sink, Sink::Memory(_))
    }

    /// Returns true if a body of unknown length may outgrow memory, and there is no store.
    pub(crate) fn may_outgrow_memory(&self) -> bool {
        self.range.end == u64::MAX && self.guard.worker.shared.store.is_none()
    }

    /// Stops sharing the fill: only one client can receive a body that outgrows memory.
    pub(crate) fn stop_sharing(&mut self) {
        let own = self.guard.unshared();
        std::mem::replace(&mut self.guard, own).end(Phase::NotShared);
    }

    /// Publishes the head.
    pub(crate) fn begin(&self) {
        let FillGuard { worker, hash, fill, .. } = &self.guard;
        fill.begin(self.object.clone(), self.range.clone());
        if self.object.length > Some(REQUEST_BYTES) {
            worker.shared.fills.skip(*hash, fill);
        }
    }

    /// Moves the buffered bytes; returns true at the end of the body.
    pub(crate) async fn take_buffered(&mut self) -> Result<bool, FillError> {
        loop {
            let buffer = &self.incoming.connection.buffer;
            let piece = self.incoming.framed.next(buffer.filled()).map_err(|_| FillError::Origin)?;
            let (used, is_over) = match piece {
                Piece::More => return Ok(false),
                Piece::Framing(len) | Piece::Trailer(len) => (len, false),
                Piece::End(len) => (len, true),
                Piece::Data(len) => {
                    self.reserve_space(len as u64).await?;
                    self.sink.write(self.stored, &self.incoming.connection.buffer.filled()[..len])?;
                    self.guard.worker.counters().filled_copied.add(len as u64);
                    self.incoming.framed.advance(len as u64);
                    self.stored += len as u64;
                    (len, false)
                }
            };
            self.incoming.connection.buffer.consume(used);
            if is_over {
                return Ok(true);
            }
        }
    }

    /// Moves the whole body and publishes it; if the transfer is interrupted, keeps the received
    /// part. Returns the task when it arrives at bytes that another fill receives, and the range
    /// from there on: then [`end_here`](Self::end_here) or [`read_on`](Self::read_on) decides.
    pub(crate) async fn run(mut self) -> Option<(Self, Range<u64>)> {
        let end = self.range.end;
        match self.fill_measured().await {
            // The body is shorter than its head announced; dropping the guard marks the fill as
            // broken.
            Ok(()) if !self.is_of_length() => {}
            Ok(()) if self.range.end < end => {
                self.publish_progress();
                let rest = self.range.end..end;
                return Some((self, rest));
            }
            Ok(()) => drop(self.finish()),
            Err(FillError::Origin | FillError::Abandoned) => self.keep_part(),
            Err(FillError::Store(held)) => {
                // After a shortened range, the origin sends the rest as well: it ends with the
                // connection.
                self.incoming.keeps_alive &= self.range.end == end;
                self.hand_over(held);
            }
        }
        None
    }

    /// Ends the fill: others receive the rest.
    pub(crate) fn end_here(mut self) {
        // The origin sends the rest as well: it ends with the connection.
        self.incoming.keeps_alive = false;
        self.finish();
    }

    /// Makes it receive the rest, although another fill receives some of it.
    pub(crate) fn read_on(&mut self, rest: Range<u64>) {
        self.incoming.framed = Framed::Length(rest.end - rest.start);
        self.range.end = rest.end;
        self.guard.fill.set_end(rest.end);
    }

    fn is_of_length(&self) -> bool {
        self.range.end == u64::MAX || self.range.start + self.stored == self.range.end
    }

    /// Keeps the received bytes as a part if the response has a strong validator (RFC 9111, section
    /// 3.3). The next request for the object fetches the remainder.
    fn keep_part(self) {
        let Self { guard, object, range, sink, stored, .. } = self;
        let is_part = stored > 0 && object.length.is_some() && strong_validator(&object.fields()).is_some();
        if is_part {
            guard.publish(|| {
                let part = sink.into_object((&guard.worker, &guard.generation), &object, range.start, stored);
                part.map(Arc::new)
            });
        }
    }

    /// Hands the remainder, which the store refuses, over to a follower.
    fn hand_over(self, held: Option<Held>) {
        // The follower begins after the last stored byte, which may not be published yet.
        self.publish_progress();
        let first = self.range.start + self.stored;
        let Self { guard, mut incoming, .. } = self;
        // A client waits for the remainder, so it is no background fetch.
        incoming.connection.background = None;
        guard.fill.hand_over(Remainder { first, incoming, held });
        guard.end(Phase::Broken);
    }

    /// Moves the whole body, and measures the CPU time if the method depends on it.
    async fn fill_measured(&mut self) -> Result<(), FillError> {
        if !self.is_measured {
            return self.fill().await;
        }
        // Sections of a long body count their own bytes.
        let before = self.range.start + self.stored;
        let (filled, cpu) = with_cpu_time(self.fill()).await;
        let moved = self.range.start + self.stored - before;
        // A short piece of a body costs more than the rest.
        if self.is_measured && moved >= MEASURED_BYTES_MIN {
            self.guard.worker.fill_costs.borrow_mut().add(self.method, moved, cpu);
        }
        filled
    }

    async fn fill(&mut self) -> Result<(), FillError> {
        while !self.take_buffered().await? {
            self.publish_progress();
            self.end_before_skipped(0);
            self.check_followers()?;
            if self.moves_pieces() {
                if self.method == FillMethod::Copy {
                    self.copy().await?;
                } else {
                    self.splice().await?;
                }
                continue;
            }
            let read = self.read().await?;
            if read.map_err(|_| FillError::Origin)? == 0 {
                return self.connection_ended();
            }
        }
        Ok(())
    }

    fn connection_ended(&mut self) -> Result<(), FillError> {
        if self.incoming.framed.ends_with_connection() { Ok(()) } else { Err(FillError::Origin) }
    }

    /// Publishes the stored bytes.
    fn publish_progress(&self) {
        if self.stored > 0 {
            self.guard.fill.progress(self.range.start + self.stored, self.sink.source(self.range.start));
        }
    }

    /// Lets the body end before bytes that another fill receives. `held` bytes are on their way
    /// into the store. A chunked body is read to its end.
    fn end_before_skipped(&mut self, held: u64) {
        let Framed::Length(_) = self.incoming.framed else { return };
        let at = self.range.start + self.stored;
        let Some(end) = self.guard.fill.shorten(at + held) else { return };
        self.range.end = end;
        self.incoming.framed = Framed::Length(end - at);
    }

    /// Reads more of the body, unless the fill is abandoned.
    async fn read(&mut self) -> Result<Result<usize, SocketError>, FillError> {
        let (stored, range) = (self.stored, self.range.clone());
        let Connection { socket, buffer, background, .. } = &mut *self.incoming.connection;
        let read = socket.read(buffer);
        let check = || check_abandoned(&self.guard, background, stored, &range);
        unless_abandoned(&self.guard.fill, read, check).await
    }

    fn check_followers(&mut self) -> Result<(), FillError> {
        if self.guard.fill.followers() == 0 {
            let background = &mut self.incoming.connection.background;
            return check_abandoned(&self.guard, background, self.stored, &self.range);
        }
        self.incoming.connection.background.iter_mut().for_each(Fetch::end);
        Ok(())
    }

    /// Returns true if data can move into the store in large pieces, past the connection's buffer.
    fn moves_pieces(&mut self) -> bool {
        let transfer = &self.guard.worker.settings().transfer;
        let ahead = self.incoming.framed.data_ahead();
        let Connection { socket, buffer, .. } = &*self.incoming.connection;
        matches!(self.sink, Sink::Store(_))
            && buffer.is_empty()
            && !socket.is_origin_stream()
            && (!socket.is_encrypted() || transfer.splice && socket.can_splice())
            && ahead >= transfer.splice_from.as_u64().max(1)
    }

    /// Copies data until framing has to be read.
    async fn copy(&mut self) -> Result<(), FillError> {
        loop {
            let ahead = self.incoming.framed.data_ahead();
            if ahead == 0 {
                return Ok(());
            }
            let most = self.len_to_alignment().min(ahead) as usize;
            let (stored, range) = (self.stored, self.range.clone());
            let Connection { socket, background, .. } = &mut *self.incoming.connection;
            let check = || check_abandoned(&self.guard, background, stored, &range);
            let received = unless_abandoned(&self.guard.fill, socket.receive(most, ahead), check).await?;
            let piece = received.map_err(|_| FillError::Origin)?;
            let len = piece.bytes().len() as u64;
            if len == 0 {
                self.connection_ended()?;
                self.incoming.framed = Framed::Length(0);
                return Ok(());
            }
            let reserved = self.reserve_space(len).await;
            if let Err(error) = reserved.and_then(|()| self.sink.write(self.stored, piece.bytes())) {
                return Err(error.holding(Held::Piece(piece)));
            }
            drop(piece);
            self.guard.worker.counters().filled_copied.add(len);
            self.incoming.framed.advance(len);
            self.stored += len;
            if self.incoming.framed.is_over() {
                // Published only after the commit: see `splice_through`.
                return Ok(());
            }
            self.publish_progress();
            self.end_before_skipped(0);
            self.check_followers()?;
            tokio::task::yield_now().await;
        }
    }

    /// Returns the length of a piece that ends at an aligned offset of the file.
    fn len_to_alignment(&self) -> u64 {
        let Sink::Store(writer) = &self.sink else { return PIECE_BYTES as u64 };
        let offset = writer.extent().offset + self.stored;
        PIECE_BYTES as u64 - offset % PIECE_BYTES as u64
    }

    /// Moves data through a pipe until framing has to be read.
    async fn splice(&mut self) -> Result<(), FillError> {
        let taken = self.guard.worker.pipes.borrow_mut().try_take();
        let Some(mut pipe) = taken else { return self.copy_some().await };
        match self.splice_through(&mut pipe).await {
            Err(error @ FillError::Store(_)) => {
                self.guard.worker.pipes.borrow_mut().forget();
                Err(error.holding(Held::Pipe(pipe)))
            }
            done => {
                self.guard.worker.pipes.borrow_mut().give_back(pipe);
                done
            }
        }
    }

    async fn splice_through(&mut self, pipe: &mut Pipe) -> Result<(), FillError> {
        loop {
            let ahead = self.incoming.framed.data_ahead();
            if ahead == 0 {
                return Ok(());
            }
            let Connection { socket, background, .. } = &mut *self.incoming.connection;
            let mut has_new = pipe.held() == 0;
            if has_new {
                let check = || check_abandoned(&self.guard, background, self.stored, &self.range);
                let splice = socket.splice_to(pipe, ahead);
                let splice = unless_abandoned(&self.guard.fill, splice, check).await?;
                if splice.map_err(|_| FillError::Origin)? == 0 {
                    self.connection_ended()?;
                    self.incoming.framed = Framed::Length(0);
                    return Ok(());
                }
            }
            let mut is_broken = false;
            while !pipe.is_full() && (pipe.held() as u64) < ahead {
                match socket.splice_more(pipe, ahead - pipe.held() as u64) {
                    Ok(0) => break,
                    Ok(_) => has_new = true,
                    Err(_) => {
                        is_broken = true;
                        break;
                    }
                }
            }
            let held = pipe.held();
            // Bytes left in the pipe are moved the next time.
            let has_more = has_new && !is_broken && (held as u64) < ahead;
            let len = if has_more { self.aligned_len(held) } else { held };
            self.reserve_space(len as u64).await?;
            let spliced = self.sink.splice(self.stored, pipe, len);
            // After a failure of the disk some bytes may be stored, and the others are in the pipe.
            let moved = (held - pipe.held()) as u64;
            self.guard.worker.counters().filled_spliced.add(moved);
            self.incoming.framed.advance(moved);
            self.stored += moved;
            spliced?;
            if self.incoming.framed.is_over() {
                // A client that has the complete object must get a hit on its next request: publish
                // the end only after the commit.
                return Ok(());
            }
            self.publish_progress();
            if is_broken {
                return Err(FillError::Origin);
            }
            self.end_before_skipped(pipe.held() as u64);
            self.check_followers()?;
            // Lets the followers run.
            tokio::task::yield_now().await;
        }
    }

    /// Returns how many of `held` bytes end at an aligned offset of the file, or all if none do.
    /// Aligned writes touch no page twice, and the kernel keeps the file in larger folios, which
    /// cost less each time the file is sent.
    fn aligned_len(&self, held: usize) -> usize {
        let Sink::Store(writer) = &self.sink else { return held };
        let beyond = (writer.extent().offset + self.stored + held as u64) % PIECE_ALIGN_BYTES;
        held.checked_sub(beyond as usize).filter(|len| *len > 0).unwrap_or(held)
    }

    /// Copies some bytes if no pipe is free.
    async fn copy_some(&mut self) -> Result<(), FillError> {
        self.is_measured = false;
        let read = self.read().await?;
        if read.map_err(|_| FillError::Origin)? == 0 {
            self.connection_ended()?;
            self.incoming.framed = Framed::Length(0);
        }
        Ok(())
    }

    /// Reserves space for `more` bytes. A body that outgrows memory moves into the store.
    async fn reserve_space(&mut self, more: u64) -> Result<(), FillError> {
        let worker = &self.guard.worker;
        let len = self.stored + more;
        if self.guard.fill.is_closed() || len > self.stored_max() {
            return self.reserve_in_section(more).await;
        }
        if let Sink::Memory(bytes) = &self.sink {
            if len <= worker.settings().memory_object as u64 {
                return Ok(());
            }
            let store = worker.shared.store.as_ref().ok_or(FillError::Store(None))?;
            let writer = reserve(worker, store, &self.object, self.range.start, None);
            let mut writer = writer.ok_or(FillError::Store(None))?;
            writer.grow(len)?;
            writer.write(0, &bytes.lock().unwrap_or_else(PoisonError::into_inner))?;
            // Followers read from memory until the move is complete.
            self.sink = writer;
        }
        self.sink.grow(len)
    }

    /// Returns the length up to which the body is stored. A body of unknown length may be endless,
    /// and would evict all other objects.
    fn stored_max(&self) -> u64 {
        let object_max = self.guard.worker.settings().object_max;
        match &self.sink {
            Sink::Store(writer) if self.range.end == u64::MAX => {
                object_max.min(writer.capacity_bytes() / UNKNOWN_DIVISOR)
            }
            _ => object_max,
        }
    }

    /// Reserves space for `more` bytes of a body that is too long to be stored. Fails if one client
    /// can take over the connection. Otherwise the body goes on in sections, which are freed when
    /// all followers were sent them, and the fill waits for the slowest follower.
    async fn reserve_in_section(&mut self, more: u64) -> Result<(), FillError> {
        let FillGuard { worker, fill, .. } = &self.guard;
        let Some(store) = worker.shared.store.as_ref().filter(|_| self.range.end == u64::MAX) else {
            return Err(FillError::Store(None));
        };
        // Before the head is published, no follower is sent bytes.
        if fill.object_now().is_none() {
            return Err(FillError::Store(None));
        }
        fill.close();
        let at = self.range.start + self.stored;
        let is_full = match &self.sink {
            Sink::Memory(_) => true,
            Sink::Store(writer) => {
                let ahead_max = writer.capacity_bytes() / UNKNOWN_DIVISOR;
                let needed = at.min((at + more).saturating_sub(ahead_max));
                self.patience = fill.wait_sent(needed, self.patience).await.unwrap_or(PATIENCE);
                self.stored > 0 && self.stored + more > ahead_max / SECTIONS
            }
        };
        if fill.has_one_near(at) {
            return Err(FillError::Store(None));
        }
        if is_full {
            let next = reserve(worker, store, &self.object, at, None).ok_or(FillError::Store(None))?;
            self.publish_progress();
            fill.end_section();
            self.sink = next;
            self.range.start = at;
            self.stored = 0;
        }
        self.sink.grow(self.stored + more)
    }

    /// Publishes the complete body.
    pub(crate) fn finish(self) -> Option<Arc<Object>> {
        let Self { guard, object, incoming, range, sink, stored, .. } = self;
        let worker = guard.worker.clone();
        let source = sink.source(range.start);
        let published = guard.publish(|| {
            if guard.fill.is_closed() {
                return None;
            }
            let whole = sink.into_object((&guard.worker, &guard.generation), &object, range.start, stored);
            whole.map(Arc::new)
        });
        let published = published.or_else(|| unpublished(&guard.generation, &object, &source, stored));
        // If it was not stored, followers can still read the published bytes.
        if stored > 0 {
            guard.fill.progress(range.start + stored, source);
        }
        guard.end(Phase::Done);
        incoming.finish(&worker.upstream());
        published
    }
}

/// Returns the result of `work`, or the error of `check` if all clients disconnect meanwhile and it
/// returns one.
async fn unless_abandoned<T>(
    fill: &Fill,
    work: impl Future<Output = T>,
    check: impl FnOnce() -> Result<(), FillError>,
) -> Result<T, FillError> {
    let mut work = pin!(work);
    tokio::select! {
        biased;
        done = &mut work => return Ok(done),
        () = fill.abandoned() => {}
    }
    check()?;
    Ok(work.await)
}

/// Returns an error if a fill without a client must be given up: by `cache.abandoned`, or because
/// `limits.background_fetches` is reached.
fn check_abandoned(
    guard: &FillGuard,
    background: &mut Option<Fetch>,
    stored: u64,
    range: &Range<u64>,
) -> Result<(), FillError> {
    let settings = guard.worker.settings();
    let is_wanted = match settings.abandoned {
        Abandoned::Finish => true,
        Abandoned::Drop => false,
        Abandoned::Past(percent) => {
            let len = range.end - range.start;
            u128::from(stored) * 100 >= u128::from(len) * u128::from(percent)
        }
    };
    let is_counted = |fetch: &mut Fetch| fetch.begin(settings.background);
    let continues = is_wanted && background.as_mut().is_some_and(is_counted);
    if continues { Ok(()) } else { Err(FillError::Abandoned) }
}
