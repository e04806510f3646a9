//! Compressor: makes coded forms of stored responses, on a thread of its own with a low priority.
//!
//! Hits request it ([`crate::serve::coded`]), and never wait for it. The record of a response is
//! replaced by one that has the forms as well ([`crate::cache::forms`]). If the response was
//! removed, replaced or updated meanwhile, its record has ended, and the forms are dropped.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io::{self, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use brotli::enc::BrotliEncoderParams;
use flate2::write::GzEncoder;
use smallvec::SmallVec;
use strait_http::coding::Coding;
use strait_store::{Error, Loaded, Record, Stores};

use crate::cache::forms::Forms;
use crate::cache::meta::Meta;
use crate::cache::object::{Body, Home, Object};
use crate::cache::worker::Shared;
use crate::config::compress::{BODY_BYTES_MAX, Compression};
use crate::config::edge::Level;

/// Maximum of responses that wait.
const JOBS_MAX: usize = 64;
/// Maximum of bytes that they keep in memory, also after the cache has removed them.
const JOBS_BYTES_MAX: u64 = 64 << 20;
/// Longest record that is read: a body with its forms, which are shorter.
const RECORD_BYTES_MAX: usize = BODY_BYTES_MAX as usize * (1 + Coding::ALL.len());
/// Priority of the thread: lower than that of the workers (nice(2)).
const NICE: i32 = 10;

/// Response in the queue.
#[derive(Debug)]
struct Job {
    hash: u64,
    object: Arc<Object>,
    codings: SmallVec<[Coding; Coding::ALL.len()]>,
    level: Level,
}

impl Job {
    /// Returns the number of bytes that it keeps in memory.
    fn bytes(&self) -> u64 {
        match &self.object.body {
            Body::Memory(bytes, _) => bytes.len() as u64,
            Body::Stored(_) | Body::Filling => 0,
        }
    }
}

/// Reason why a response was not compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Skip {
    /// Too many others wait; a later hit requests it again.
    Full,
    /// It was removed, replaced or updated meanwhile.
    Replaced,
    /// It could not be read or stored, memory has no space for its forms, or the proxy ends.
    Failed,
}

impl Skip {
    pub(crate) const ALL: [Self; 3] = [Self::Full, Self::Replaced, Self::Failed];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Replaced => "replaced",
            Self::Failed => "failed",
        }
    }
}

impl From<Error> for Skip {
    fn from(error: Error) -> Self {
        if matches!(error, Error::Removed { .. }) { Self::Replaced } else { Self::Failed }
    }
}

/// Counters of a coding.
#[derive(Debug, Default)]
pub(crate) struct Coded {
    /// Forms that were stored, and bytes of their bodies before and after.
    pub(crate) forms: AtomicU64,
    pub(crate) bytes_in: AtomicU64,
    pub(crate) bytes_out: AtomicU64,
    /// Forms that would not have been shorter.
    pub(crate) not_shorter: AtomicU64,
}

/// Responses that wait to be compressed, and counters.
#[derive(Debug, Default)]
pub(crate) struct Compressor {
    state: Mutex<State>,
    changed: Condvar,
    pub(crate) coded: [Coded; Coding::ALL.len()],
    skips: [AtomicU64; Skip::ALL.len()],
}

#[derive(Debug, Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Response that is being compressed.
    current: Option<Arc<Object>>,
    is_over: bool,
}

impl State {
    fn has_space(&self, job: &Job) -> bool {
        let bytes: u64 = self.jobs.iter().map(Job::bytes).sum();
        self.jobs.len() < JOBS_MAX && bytes + job.bytes() <= JOBS_BYTES_MAX
    }

    /// Returns true if a response waits, or is being compressed. Without a memory cache each hit
    /// has an object of its own.
    fn has(&self, object: &Object) -> bool {
        let mut all = self.jobs.iter().map(|job| &job.object).chain(&self.current);
        all.any(|other| {
            other.is_for_same(object)
                && other.records().map(Arc::as_ptr).eq(object.records().map(Arc::as_ptr))
        })
    }
}

impl Compressor {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests the forms of an object that it lacks, unless another hit has requested them.
    pub(crate) fn request(&self, hash: u64, object: &Arc<Object>, compression: &Compression) {
        if !object.claim.take() {
            return;
        }
        let (codings, level) = (compression.codings.iter().copied().collect(), compression.level);
        let job = Job { hash, object: object.clone(), codings, level };
        let mut state = self.state();
        if state.has(object) {
            object.claim.release();
        } else if state.has_space(&job) && !state.is_over {
            state.jobs.push_back(job);
            self.changed.notify_one();
        } else {
            object.claim.release();
            self.skip(Skip::Full);
        }
    }

    /// Returns the number of responses that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.state().jobs.len()
    }

    /// Returns how often responses were skipped for a reason.
    pub(crate) fn skipped(&self, skip: Skip) -> u64 {
        self.skips[skip as usize].load(Ordering::Relaxed)
    }

    fn skip(&self, skip: Skip) {
        self.skips[skip as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Ends the thread after the coding that it applies. Forms that are not stored are dropped.
    pub(crate) fn end(&self) {
        let mut state = self.state();
        state.is_over = true;
        state.jobs.clear();
        self.changed.notify_all();
    }

    /// Waits for the next response; `None` at the end.
    fn next(&self) -> Option<Job> {
        let mut state = self.state();
        while !state.is_over {
            state.current = state.jobs.front().map(|job| job.object.clone());
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        None
    }
}

/// Compresses responses until [`Compressor::end`].
pub(crate) fn run(shared: &Shared) {
    // Without the lower priority it works as well.
    let _ = rustix::process::setpriority_process(None, NICE);
    while let Some(job) = shared.compressor.next() {
        // A defect of a library must not end the thread.
        let compressed = catch_unwind(AssertUnwindSafe(|| compress(shared, &job)));
        if let Err(skip) = compressed.unwrap_or(Err(Skip::Failed)) {
            shared.compressor.skip(skip);
        }
    }
}

/// Makes the forms of a response, and stores them with it.
fn compress(shared: &Shared, job: &Job) -> Result<(), Skip> {
    let Job { hash, object, codings, level } = job;
    if !object.is_alive() || !object.is_current() {
        return Err(Skip::Replaced);
    }
    let source = Source::of(shared, object)?;
    let length = object.length.ok_or(Skip::Failed)?;
    let body = source.bytes(0, length)?;
    let (mut forms, mut made) = (object.forms, Made::new());
    for coding in Coding::ALL {
        let earlier = object.forms.ranges(length).find(|(own, _)| *own == coding);
        if let Some((_, range)) = earlier {
            made.push((coding, source.bytes(range.start, range.end)?.to_vec()));
        } else if shared.compressor.state().is_over {
            // A long body would delay the end by seconds for each coding.
            return Err(Skip::Failed);
        } else if codings.contains(&coding) && forms.lack(coding) {
            let form = encode(coding, *level, body).map_err(|_| Skip::Failed)?;
            let len = u32::try_from(form.len()).ok().filter(|len| u64::from(*len) < length);
            forms.set(coding, len);
            if len.is_some() {
                made.push((coding, form));
            }
        }
    }
    #[cfg(test)]
    tests::wait_before_the_end_of(&object.key);
    publish(shared, (*hash, object), &source, (forms, body, &made))?;
    count(shared, object, forms, length);
    Ok(())
}

/// Forms with their bytes.
type Made = SmallVec<[(Coding, Vec<u8>); Coding::ALL.len()]>;

/// Response as the cache has it, with its coded forms.
enum Source<'o> {
    /// In memory alone.
    Memory(&'o [u8]),
    /// Record in the store, and its body if that is apart from its head. The meta of the record is
    /// written again, and not that of the object, which may have fields for one client alone.
    Stored(&'o Arc<Record>, Loaded, Vec<u8>),
}

impl<'o> Source<'o> {
    /// Reads the record of an object, and compares it with its hash.
    fn of(shared: &Shared, object: &'o Object) -> Result<Self, Skip> {
        if let Body::Memory(bytes, Home::Memory(_)) = &object.body {
            return Ok(Self::Memory(bytes));
        }
        let store = shared.store.as_ref().ok_or(Skip::Failed)?;
        let mut records = object.records();
        // Parts with several records are not put together.
        let only = records.next().filter(|_| records.next().is_none()).ok_or(Skip::Failed)?;
        let loaded = store.load(only, RECORD_BYTES_MAX)?;
        let apart = if loaded.body().is_none() { body_of(store, only)? } else { Vec::new() };
        Ok(Self::Stored(only, loaded, apart))
    }

    fn bytes(&self, start: u64, end: u64) -> Result<&[u8], Skip> {
        let all = match self {
            Self::Memory(bytes) => bytes,
            Self::Stored(_, loaded, apart) => loaded.body().unwrap_or(apart),
        };
        all.get(start as usize..end as usize).ok_or(Skip::Failed)
    }
}

/// Reads the body of a record whose meta was updated, after a comparison with its hash.
fn body_of(store: &Stores, record: &Arc<Record>) -> Result<Vec<u8>, Skip> {
    let mut check = store.check(record);
    while !store.check_next(&mut check)? {}
    let place = record.body().ok_or(Skip::Replaced)?;
    let len = usize::try_from(record.body_len()).ok().filter(|len| *len <= RECORD_BYTES_MAX);
    let mut body = vec![0; len.ok_or(Skip::Failed)?];
    let mut at = 0;
    while let Some(rest) = body.get_mut(at..).filter(|rest| !rest.is_empty()) {
        match rustix::io::pread(&*place.file, rest, place.offset + at as u64) {
            Ok(0) | Err(_) => return Err(Skip::Failed),
            Ok(read) => at += read,
        }
    }
    Ok(body)
}

/// Replaces the object by one with the forms, unless it was removed or replaced meanwhile.
fn publish(
    shared: &Shared,
    (hash, object): (u64, &Arc<Object>),
    source: &Source<'_>,
    (forms, body, made): (Forms, &[u8], &Made),
) -> Result<(), Skip> {
    let lane = shared.compressor_lane();
    let pieces: SmallVec<[&[u8]; 1 + Coding::ALL.len()]> =
        std::iter::once(body).chain(made.iter().map(|(_, form)| &form[..])).collect();
    match (source, &object.body, &shared.store) {
        (Source::Memory(_), Body::Memory(_, home), _) => {
            let meta = Meta { forms, ..object.meta(0) };
            let place = Body::Memory(pieces.concat().into(), home.clone());
            let coded = Object::new(&object.key, &meta, place).ok_or(Skip::Failed)?;
            // The object stays, and is claimed: no hit requests the forms again.
            if !shared.memory.may_hold(hash, &coded) {
                return Err(Skip::Failed);
            }
            let is_replaced = shared.memory.exchange(hash, object, Arc::new(coded));
            if is_replaced { Ok(()) } else { Err(Skip::Replaced) }
        }
        (Source::Stored(record, loaded, _), _, Some(store)) => {
            let meta = Meta::decode(loaded.meta()).ok_or(Skip::Failed)?;
            let meta = Meta { forms, ..meta }.encode();
            if made.is_empty() {
                // Notes that no form is shorter.
                store.update(lane, record, &meta)?;
            } else {
                store.rewrite(lane, record, (loaded.key(), &meta), &pieces)?;
            }
            Ok(())
        }
        _ => Err(Skip::Failed),
    }
}

fn count(shared: &Shared, object: &Object, forms: Forms, length: u64) {
    let lens: SmallVec<[_; Coding::ALL.len()]> = forms.ranges(length).collect();
    for (coding, counters) in Coding::ALL.into_iter().zip(&shared.compressor.coded) {
        if !object.forms.lack(coding) || forms.lack(coding) {
            continue;
        }
        match lens.iter().find(|(own, _)| *own == coding) {
            Some((_, range)) => {
                counters.forms.fetch_add(1, Ordering::Relaxed);
                counters.bytes_in.fetch_add(length, Ordering::Relaxed);
                counters.bytes_out.fetch_add(range.end - range.start, Ordering::Relaxed);
            }
            None => drop(counters.not_shorter.fetch_add(1, Ordering::Relaxed)),
        }
    }
}

/// Returns a body with a coding. The windows have at most 4 MiB, and clients of zstd support at
/// least 8 MiB (RFC 9659).
fn encode(coding: Coding, level: Level, body: &[u8]) -> io::Result<Vec<u8>> {
    let by_level = |fast, balanced, best| match level {
        Level::Fast => fast,
        Level::Balanced => balanced,
        Level::Best => best,
    };
    let mut out = Vec::new();
    match coding {
        Coding::Zstd => return zstd::bulk::compress(body, by_level(3, 9, 15)),
        Coding::Brotli => {
            let quality = by_level(4, 6, 9);
            let params = BrotliEncoderParams { quality, lgwin: 22, size_hint: body.len(), ..<_>::default() };
            brotli::BrotliCompress(&mut &*body, &mut out, &params)?;
        }
        Coding::Gzip => {
            let level = flate2::Compression::new(by_level(4, 6, 9).unsigned_abs());
            let mut encoder = GzEncoder::new(&mut out, level);
            encoder.write_all(body)?;
            encoder.finish()?;
        }
    }
    Ok(out)
}
