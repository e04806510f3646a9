//! Moves a body from its origin into the store, whoever wants it and however fast they take it.

use std::io;
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use smallvec::SmallVec;
use strait_http::partial::strong_validator;
use strait_store::{Store, Writer};
use strait_transfer::pipe::Pipe;

use crate::cache::fill::{Fill, Phase, Remainder, Source};
use crate::cache::generation::Generation;
use crate::cache::object::{Body, Home, Object, Part};
use crate::cache::worker::Worker;
use crate::config::file::Abandoned;
use crate::io::framing::{Framed, Piece};
use crate::io::socket::SocketError;
use crate::upstream::background::Fetch;
use crate::upstream::incoming::Incoming;
use crate::upstream::pool::Connection;

/// Pieces of a body end at multiples of this in their file, where they may.
const EVEN_BYTES: u64 = 64 << 10;

/// The right to see to a fill. Dropped before it is over, the fill is broken.
#[derive(Debug)]
pub(crate) struct FillGuard {
    pub(crate) worker: Rc<Worker>,
    pub(crate) hash: u64,
    pub(crate) fill: Arc<Fill>,
    generation: Generation,
    is_over: bool,
}

impl FillGuard {
    pub(crate) fn new(worker: &Rc<Worker>, hash: u64, fill: Arc<Fill>) -> Self {
        let generation = worker.shared.generations.take(hash);
        Self { worker: worker.clone(), hash, fill, generation, is_over: false }
    }

    pub(crate) fn end(mut self, phase: Phase) {
        self.finish(phase);
    }

    /// Calls `store`, which makes a record visible, and puts the object that it returns into the
    /// cache; without a call if the key was invalidated since the fill began.
    fn publish(&self, store: impl FnOnce() -> Option<Object>) -> Option<Arc<Object>> {
        self.fill.publish(|| {
            let object = Arc::new(store()?);
            let is_valid = object.is_alive() && object.is_current();
            is_valid.then(|| self.worker.keep(self.hash, &object));
            Some(object)
        })
    }

    /// The origin failed before there was a head: those who wait are told the same.
    pub(crate) fn fail(mut self, status: u16, why: &str) {
        self.fill.fail((status, why.to_owned()));
        self.finish(Phase::Broken);
    }

    fn finish(&mut self, phase: Phase) {
        self.is_over = true;
        self.worker.shared.fills.remove(self.hash, &self.fill);
        self.fill.end(phase);
    }
}

impl Drop for FillGuard {
    fn drop(&mut self) {
        if !self.is_over {
            self.finish(Phase::Broken);
        }
    }
}

/// A body that is being moved.
#[derive(Debug)]
pub(crate) struct FillTask {
    pub(crate) guard: FillGuard,
    pub(crate) object: Arc<Object>,
    pub(crate) incoming: Box<Incoming>,
    /// The bytes of the representation that are coming; the end is not known of all.
    pub(crate) range: Range<u64>,
    sink: Sink,
    /// Bytes that are there.
    stored: u64,
}

/// Where the bytes go.
#[derive(Debug)]
enum Sink {
    Memory(Arc<Mutex<Vec<u8>>>),
    Store(Box<Writer>),
}

/// Why a fill does not come to its end.
#[derive(Debug)]
pub(crate) enum FillError {
    /// The origin failed.
    Origin,
    /// The store did not take it; some of it is in a pipe.
    Store(Option<Pipe>),
    /// Nobody wants it any more.
    Abandoned,
}

impl FillError {
    fn refused(writer: &Writer, error: &io::Error) -> Self {
        writer.failed(error);
        Self::Store(None)
    }
}

impl FillTask {
    /// A fill of what `incoming` brings; `None` where there is no room for it, and it is to be
    /// passed on instead.
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
                Ok(Self { guard, object, incoming, range, sink, stored: 0 })
            }
            None => Err((guard, incoming)),
        }
    }

    /// Whether it goes into memory, for all that is known.
    pub(crate) fn is_in_memory(&self) -> bool {
        matches!(self.sink, Sink::Memory(_))
    }

    /// Whether it may become too long for where it goes, and nobody knows yet: without a store.
    pub(crate) fn may_outgrow_memory(&self) -> bool {
        self.range.end == u64::MAX && self.guard.worker.shared.store.is_none()
    }

    /// Has nobody else follow it: what does not fit could go on to one alone.
    pub(crate) fn be_alone(&mut self) {
        let FillGuard { worker, hash, fill, generation, .. } = &self.guard;
        let (fill, generation) = (Arc::new(Fill::new(fill.key(), None)), generation.clone());
        let own = FillGuard { worker: worker.clone(), hash: *hash, fill, generation, is_over: false };
        std::mem::replace(&mut self.guard, own).end(Phase::Private);
    }

    /// Shows the head to those who wait for it.
    pub(crate) fn begin(&self) {
        self.guard.fill.begin(self.object.clone(), self.range.clone());
    }

    /// Moves what is here already; whether that is all.
    pub(crate) fn take_buffered(&mut self) -> Result<bool, FillError> {
        loop {
            let buffer = &self.incoming.connection.buffer;
            let piece = self.incoming.framed.next(buffer.filled()).map_err(|_| FillError::Origin)?;
            let (used, is_over) = match piece {
                Piece::More => return Ok(false),
                Piece::Framing(len) | Piece::Trailer(len) => (len, false),
                Piece::End(len) => (len, true),
                Piece::Data(len) => {
                    self.make_room(len as u64)?;
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

    /// Stores a body that is here already, all of it, from where it was read; the object, and what
    /// it came with, whose next bytes are the body.
    pub(crate) fn store_at_once(self) -> Result<(Arc<Object>, Box<Incoming>), Self> {
        let worker = self.guard.worker.clone();
        let Some((store, len)) = worker.shared.store.as_ref().zip(self.whole_length()) else {
            return Err(self);
        };
        let meta = self.object.meta(0).encode();
        let body = &self.incoming.connection.buffer.filled()[..len];
        let object = self.guard.publish(|| {
            let record = store.put(worker.lane, self.object.key.as_bytes(), &meta, &[body]).ok()?;
            let part = Part { range: 0..len as u64, record };
            Some(self.object.with_body(Some(len as u64), Body::Stored(SmallVec::from_iter([part]))))
        });
        let Some(object) = object else { return Err(self) };
        self.guard.end(Phase::Done);
        Ok((object, self.incoming))
    }

    /// The length of the body, if it is whole, small, not chunked, and here.
    fn whole_length(&self) -> Option<usize> {
        let Framed::Length(length) = self.incoming.framed else { return None };
        let here = self.incoming.connection.buffer.filled().len();
        let is_whole = self.range == (0..length) && self.object.length == Some(length);
        let is_here = self.is_in_memory() && is_whole && length <= here as u64;
        is_here.then_some(length as usize)
    }

    /// Moves it all, and keeps it; or as much of it as there is.
    pub(crate) async fn run(mut self) {
        match self.fill().await {
            // It is not what its head tells: dropped, it is broken.
            Ok(()) if !self.is_of_length() => {}
            Ok(()) => drop(self.finish()),
            Err(FillError::Origin | FillError::Abandoned) => self.keep_part(),
            Err(FillError::Store(pipe)) => self.hand_over(pipe),
        }
    }

    fn is_of_length(&self) -> bool {
        self.range.end == u64::MAX || self.range.start + self.stored == self.range.end
    }

    /// What came of a representation whose bytes can be told again is a part of it (RFC 9111,
    /// section 3.3): the rest is asked for when somebody wants it. Abandoned is not complete.
    fn keep_part(self) {
        let Self { guard, object, range, sink, stored, .. } = self;
        let is_part = stored > 0 && object.length.is_some() && strong_validator(&object.fields()).is_some();
        if is_part {
            guard.publish(|| sink.keep(&guard, &object, range.start, stored));
        }
    }

    /// The store takes no more of it: whoever wants it goes on with the rest.
    fn hand_over(self, pipe: Option<Pipe>) {
        // Whoever goes on begins behind the last byte that is there, which may not have been told yet.
        self.tell();
        let first = self.range.start + self.stored;
        let Self { guard, mut incoming, .. } = self;
        // A client goes on with it.
        incoming.connection.background = None;
        guard.fill.hand_over(Remainder { first, incoming, pipe });
        guard.end(Phase::Broken);
    }

    async fn fill(&mut self) -> Result<(), FillError> {
        while !self.take_buffered()? {
            self.tell();
            self.check_wanted()?;
            if self.splices() {
                self.splice().await?;
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

    /// Tells the followers how much is there.
    fn tell(&self) {
        if self.stored > 0 {
            self.guard.fill.progress(self.range.start + self.stored, self.sink.source(self.range.start));
        }
    }

    /// Reads more of it, unless it is abandoned.
    async fn read(&mut self) -> Result<Result<usize, SocketError>, FillError> {
        let (stored, range) = (self.stored, self.range.clone());
        let Connection { socket, buffer, background, .. } = &mut *self.incoming.connection;
        let read = socket.read(buffer);
        let check = || check_abandoned(&self.guard, background, stored, &range);
        unless_abandoned(&self.guard.fill, read, check).await
    }

    fn check_wanted(&mut self) -> Result<(), FillError> {
        if self.guard.fill.followers() == 0 {
            let background = &mut self.incoming.connection.background;
            return check_abandoned(&self.guard, background, self.stored, &self.range);
        }
        self.incoming.connection.background.iter_mut().for_each(Fetch::end);
        Ok(())
    }

    fn splices(&mut self) -> bool {
        let transfer = &self.guard.worker.settings().transfer;
        let ahead = self.incoming.framed.data_ahead();
        transfer.splice
            && matches!(self.sink, Sink::Store(_))
            && self.incoming.connection.buffer.is_empty()
            && self.incoming.connection.socket.can_splice()
            && ahead >= transfer.splice_from.as_u64().max(1)
    }

    /// Moves data through a pipe, until there is framing to be read.
    async fn splice(&mut self) -> Result<(), FillError> {
        let taken = self.guard.worker.pipes.borrow_mut().try_take();
        let Some(mut pipe) = taken else { return self.copy_some().await };
        match self.splice_through(&mut pipe).await {
            Err(FillError::Store(_)) => {
                self.guard.worker.pipes.borrow_mut().forget();
                Err(FillError::Store(Some(pipe)))
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
            let mut has_come = pipe.held() == 0;
            if has_come {
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
                    Ok(_) => has_come = true,
                    Err(_) => {
                        is_broken = true;
                        break;
                    }
                }
            }
            let held = pipe.held();
            // What is left in the pipe goes on the next time, with what has come by then or without.
            let has_more = has_come && !is_broken && (held as u64) < ahead;
            let len = if has_more { self.even_piece(held) } else { held };
            self.make_room(len as u64)?;
            let spliced = self.sink.splice(self.stored, pipe, len);
            // Where the disk has failed some of it may be there, and the rest is in the pipe.
            let there = (held - pipe.held()) as u64;
            self.guard.worker.counters().filled_spliced.add(there);
            self.incoming.framed.advance(there);
            self.stored += there;
            spliced?;
            if self.incoming.framed.is_over() {
                // Who has all of it and asks again is to find it in the store.
                return Ok(());
            }
            self.tell();
            if is_broken {
                return Err(FillError::Origin);
            }
            self.check_wanted()?;
            // The followers have their turn.
            tokio::task::yield_now().await;
        }
    }

    /// Of so many bytes as many as end at an even place of the file, if any do: no page is written
    /// twice, and the kernel keeps the file in larger folios, which cost less whenever it is
    /// sent.
    fn even_piece(&self, held: usize) -> usize {
        let Sink::Store(writer) = &self.sink else { return held };
        let beyond = (writer.extent().offset + self.stored + held as u64) % EVEN_BYTES;
        held.checked_sub(beyond as usize).filter(|len| *len > 0).unwrap_or(held)
    }

    /// Without a pipe there is memory.
    async fn copy_some(&mut self) -> Result<(), FillError> {
        let read = self.read().await?;
        if read.map_err(|_| FillError::Origin)? == 0 {
            self.connection_ended()?;
            self.incoming.framed = Framed::Length(0);
        }
        Ok(())
    }

    /// Sees to room for so many bytes more: a body that grows too large for memory goes into the
    /// store.
    fn make_room(&mut self, more: u64) -> Result<(), FillError> {
        let worker = &self.guard.worker;
        let len = self.stored + more;
        if len > worker.settings().object_max {
            return Err(FillError::Store(None));
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
            // Followers read where they did until all is in its new place.
            self.sink = writer;
        }
        self.sink.grow(len)
    }

    /// All of it is there: it is kept, and told.
    pub(crate) fn finish(self) -> Option<Arc<Object>> {
        let Self { guard, object, incoming, range, sink, stored } = self;
        let worker = guard.worker.clone();
        let source = sink.source(range.start);
        let kept = guard.publish(|| sink.keep(&guard, &object, range.start, stored));
        let kept = kept.or_else(|| unpublished(&guard.generation, &object, &source, stored));
        // Without that, what was told of stays readable for those who follow.
        if stored > 0 {
            guard.fill.progress(range.start + stored, source);
        }
        guard.end(Phase::Done);
        incoming.finish(&worker.upstream());
        kept
    }
}

/// The whole object outside the cache, for the client whose fill an invalidation outdated.
fn unpublished(
    generation: &Generation,
    object: &Object,
    source: &Source,
    stored: u64,
) -> Option<Arc<Object>> {
    let Source::Memory(bytes, 0) = source else { return None };
    let body = Body::Memory(shared(bytes), Home::Memory(generation.clone()));
    (object.length.unwrap_or(stored) == stored).then(|| Arc::new(object.with_body(Some(stored), body)))
}

/// What `work` comes to, unless all clients leave meanwhile and `check` finds that a reason to end
/// it.
async fn unless_abandoned<T>(
    fill: &Fill,
    work: impl Future<Output = T>,
    check: impl FnOnce() -> Result<(), FillError>,
) -> Result<T, FillError> {
    let mut work = pin!(work);
    tokio::select! {
        biased;
        done = &mut work => return Ok(done),
        () = fill.left() => {}
    }
    check()?;
    Ok(work.await)
}

/// Returns an error if a fill that no client waits for is to be given up: by `cache.abandoned`, or
/// because as many go on as may (limits.background_fetches).
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
    let goes_on = is_wanted && background.as_mut().is_some_and(is_counted);
    if goes_on { Ok(()) } else { Err(FillError::Abandoned) }
}

/// Room in the store for a body of which the first byte is `first`.
fn reserve(
    worker: &Worker,
    store: &Arc<Store>,
    object: &Object,
    first: u64,
    len: Option<u64>,
) -> Option<Sink> {
    let meta = object.meta(first).encode();
    let writer = store.reserve(worker.lane, object.key.as_bytes(), &meta, len).ok()?;
    Some(Sink::Store(Box::new(writer)))
}

impl Sink {
    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), FillError> {
        match self {
            Self::Memory(all) => {
                all.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
                Ok(())
            }
            Self::Store(writer) => {
                let written = write_at(&writer.extent(), at, bytes);
                written.map_err(|error| FillError::refused(writer, &error))
            }
        }
    }

    fn grow(&mut self, len: u64) -> Result<(), FillError> {
        match self {
            Self::Store(writer) if writer.writable_bytes() < len => {
                writer.grow(len).map_err(|_| FillError::Store(None))
            }
            _ => Ok(()),
        }
    }

    /// Moves the first `len` bytes of what a pipe holds.
    fn splice(&mut self, at: u64, pipe: &mut Pipe, len: usize) -> Result<(), FillError> {
        let Self::Store(writer) = self else { return Err(FillError::Store(None)) };
        let extent = writer.extent();
        let (mut offset, left) = (extent.offset + at, pipe.held() - len);
        while pipe.held() > left {
            let most = pipe.held() - left;
            let moved = pipe.empty_some(&*extent.file, Some(&mut offset), most);
            moved.map_err(|error| FillError::refused(writer, &error.into()))?;
        }
        Ok(())
    }

    /// Where followers read, of a body that begins with byte `first` of the representation.
    fn source(&self, first: u64) -> Source {
        match self {
            Self::Memory(bytes) => Source::Memory(bytes.clone(), first),
            Self::Store(writer) => Source::Stored(writer.extent(), first),
        }
    }

    /// The object of it, whole.
    fn keep(self, guard: &FillGuard, object: &Object, first: u64, stored: u64) -> Option<Object> {
        let length = object.length.or(Some(first + stored));
        match self {
            Self::Memory(bytes) => {
                let bytes = shared(&bytes);
                let whole = object.with_body(length, Body::Filling);
                let meta = whole.meta(first).encode();
                let worker = &guard.worker;
                let put =
                    |store: &Arc<Store>| store.put(worker.lane, object.key.as_bytes(), &meta, &[&bytes]).ok();
                let record = worker.shared.store.as_ref().and_then(put);
                let is_whole = first == 0 && length == Some(stored);
                let body = match record {
                    record if is_whole => {
                        let home = record.map_or_else(|| Home::Memory(guard.generation.clone()), Home::Store);
                        Body::Memory(bytes, home)
                    }
                    Some(record) => {
                        Body::Stored(SmallVec::from_iter([Part { range: first..first + stored, record }]))
                    }
                    None => return None,
                };
                Some(whole.with_body(length, body))
            }
            Self::Store(writer) => {
                let record = writer.commit(stored).ok()?;
                let part = Part { range: first..first + stored, record };
                Some(object.with_body(length, Body::Stored(SmallVec::from_iter([part]))))
            }
        }
    }
}

fn shared(bytes: &Mutex<Vec<u8>>) -> Arc<[u8]> {
    bytes.lock().unwrap_or_else(PoisonError::into_inner).as_slice().into()
}

fn write_at(extent: &strait_store::Extent, at: u64, bytes: &[u8]) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        let offset = extent.offset + at + done as u64;
        match rustix::io::pwrite(&*extent.file, &bytes[done..], offset)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            written => done += written,
        }
    }
    Ok(())
}
