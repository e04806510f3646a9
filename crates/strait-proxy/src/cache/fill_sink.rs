//! Destination of a fill: memory, or space reserved in the store.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use smallvec::SmallVec;
use strait_store::{Stores, Writer};
use strait_transfer::pipe::Pipe;

use crate::cache::fill::Source;
use crate::cache::generation::Generation;
use crate::cache::object::{Body, Home, Object, Part};
use crate::cache::remainder::Held;
use crate::cache::worker::Worker;

/// Destination of the bytes.
#[derive(Debug)]
pub(super) enum Sink {
    Memory(Arc<Mutex<Vec<u8>>>),
    Store(Box<Writer>),
}

/// Error that ends a fill early.
#[derive(Debug)]
pub(crate) enum FillError {
    /// The origin failed.
    Origin,
    /// The store refused the bytes; some of them are held.
    Store(Option<Held>),
    /// All clients have left.
    Abandoned,
}

impl FillError {
    /// Adds the bytes that are held to a refusal of the store.
    pub(super) fn holding(self, held: Held) -> Self {
        match self {
            Self::Store(_) => Self::Store(Some(held)),
            other => other,
        }
    }

    pub(super) fn refused(writer: &Writer, error: &io::Error) -> Self {
        writer.failed(error);
        Self::Store(None)
    }
}

/// Reserves space in the store for a body that begins with byte `first`.
pub(super) fn reserve(
    worker: &Worker,
    store: &Arc<Stores>,
    object: &Object,
    first: u64,
    len: Option<u64>,
) -> Option<Sink> {
    let meta = object.meta(first).encode();
    let writer = store.reserve(worker.lane, object.key.as_bytes(), &meta, len).ok()?;
    Some(Sink::Store(Box::new(writer)))
}

impl Sink {
    pub(super) fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), FillError> {
        match self {
            Self::Memory(all) => {
                all.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
                Ok(())
            }
            Self::Store(writer) => {
                let written = write_at(&writer.extent(), at, bytes);
                written.map_err(|error| FillError::refused(writer, &error))?;
                // The bytes are in the processor's cache now. Otherwise the scrub would read them.
                writer.hash(at, bytes);
                Ok(())
            }
        }
    }

    pub(super) fn grow(&mut self, len: u64) -> Result<(), FillError> {
        match self {
            Self::Store(writer) if writer.writable_bytes() < len => {
                writer.grow(len).map_err(|_| FillError::Store(None))
            }
            _ => Ok(()),
        }
    }

    /// Moves the first `len` bytes of a pipe.
    pub(super) fn splice(&mut self, at: u64, pipe: &mut Pipe, len: usize) -> Result<(), FillError> {
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

    /// Returns the location from which followers read a body that begins with byte `first`.
    pub(super) fn source(&self, first: u64) -> Source {
        match self {
            Self::Memory(bytes) => Source::Memory(bytes.clone(), first),
            Self::Store(writer) => Source::Stored(writer.extent(), first),
        }
    }

    /// Stores the moved bytes and returns their object.
    pub(super) fn into_object(
        self,
        (worker, generation): (&Worker, &Generation),
        object: &Object,
        first: u64,
        stored: u64,
    ) -> Option<Object> {
        let length = object.length.or(Some(first + stored));
        match self {
            Self::Memory(bytes) => {
                let bytes = shared(&bytes);
                let whole = object.with_body(length, Body::Filling);
                let meta = whole.meta(first).encode();
                let put = |store: &Arc<Stores>| {
                    store.put(worker.lane, object.key.as_bytes(), &meta, &[&bytes]).ok()
                };
                let record = worker.shared.store.as_ref().and_then(put);
                let is_whole = first == 0 && length == Some(stored);
                let body = match record {
                    record if is_whole => {
                        let home = record.map_or_else(|| Home::Memory(generation.clone()), Home::Store);
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

/// Returns the whole object of a fill that an invalidation has kept out of the cache: its client
/// still gets the response.
pub(super) fn unpublished(
    generation: &Generation,
    object: &Object,
    source: &Source,
    stored: u64,
) -> Option<Arc<Object>> {
    let Source::Memory(bytes, 0) = source else { return None };
    let body = Body::Memory(shared(bytes), Home::Memory(generation.clone()));
    (object.length.unwrap_or(stored) == stored).then(|| Arc::new(object.with_body(Some(stored), body)))
}
