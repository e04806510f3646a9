//! Writer of captured frames to pcapng or pcap files. It collects whole blocks in a buffer, so that
//! one `write(2)` writes many packets.
//!
//! One thread uses it, for `strait capture -w` and every program that stores packets. A file is
//! written as `NAME.part` and renamed to `NAME` when it is complete. A capture that is killed
//! leaves a `.part` that is readable up to the last flush, and a full disk leaves only whole
//! blocks. A compressed file is written likewise: each write completes a block of the compression,
//! and a second thread can compress full buffers.
//! docs/internals/files.md draws it.
//!
//! It reads no clock per packet: rotation follows the frames' timestamps, flushing follows the
//! caller's `now`. It never calls `fsync`, never drops a packet silently and never prints.

mod blocks;
mod compressor;
mod error;
mod extras;
mod indexing;
mod options;
mod output;
mod series;
mod summary;
#[cfg(test)]
mod tests;
mod worker;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub use error::SinkError;
pub use indexing::FlowOf;
pub use options::{COMMENTS_MAX, RING_FILES_MAX, ROTATE_BYTES_MIN, SinkInterface, SinkOptions, Target};
pub use strait_pcapng::{Format, LinkType, Packet as FrameRef, Statistics};
pub use summary::{Renamed, Summary};

use crate::frame::Frame;
use blocks::Blocks;
use compressor::Compressor;
use extras::{Extras, Placing};
use indexing::Indexing;
use options::Form;
use output::{Complete, CompleteFile, Output};
use series::{Series, boundary_after};
use strait_pcapng::{PACKET_OVERHEAD_MAX, SNAPLEN_MAX, packet_overhead};
use worker::{Task, Worker};

/// Bytes of whole blocks that are buffered before a `write(2)`: few enough to be still in a 1 MiB
/// second-level cache when they are copied into the page cache, and so many that the system calls
/// cost almost nothing.
pub const FLUSH_BYTES: usize = 256 << 10;

/// Maximum time for which [`FileSink::flush_due`] leaves blocks in memory.
pub const FLUSH_EVERY: Duration = Duration::from_secs(1);

/// Bytes of blocks that are compressed to find if a file is near its limit. Fewer would make small
/// blocks, which compress badly.
const COMPRESSED_BYTES_MIN: usize = 16 << 10;

/// Number of other names to try if the name of a later file is refused.
const OTHER_NAMES_MAX: usize = 3;

/// Open capture file, or a series of them.
///
/// ```
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("out.pcapng");
/// use strait_capture::sink::{FileSink, FrameRef, SinkOptions, Target};
///
/// let start_ns = 1_700_000_000_000_000_000;
/// let mut sink = FileSink::create(SinkOptions::new(Target::Path(path), start_ns))?;
/// let (timestamp_ns, bytes) = (start_ns + 1, b"frame".as_slice());
/// sink.write(&FrameRef { timestamp_ns, bytes, wire_len: 5, ..FrameRef::default() })?;
/// let summary = sink.close(&[])?;
/// assert_eq!(summary.packets, 1);
/// # Ok::<(), strait_capture::sink::SinkError>(())
/// ```
#[derive(Debug)]
pub struct FileSink {
    options: SinkOptions,
    series: Series,
    /// Current file; `None` after it could not be opened or was closed, and while the worker has
    /// it.
    output: Option<Output>,
    worker: Option<Worker>,
    passed: Option<Passed>,
    /// Buffer that the worker has returned.
    spare: Vec<u8>,
    blocks: Blocks,
    buffer: Vec<u8>,
    /// Number of packets in the buffer.
    buffered_packets: u64,
    /// Number of packets written to this file.
    written_packets: u64,
    rotate_bytes: u64,
    rotate_at_ns: u64,
    last_ns: u64,
    flushed_at: Option<Instant>,
    statistics: Vec<Statistics>,
    failure: Option<SinkError>,
    renamed: Option<Renamed>,
    index: Option<Indexing>,
    extras: Extras,
    summary: Summary,
}

/// Account of the buffer that the worker has.
#[derive(Debug)]
struct Passed {
    packets: u64,
    /// Blocks that belong to no packet.
    extra_blocks: u64,
    /// Bytes of the file before, and of its content.
    bytes: u64,
    before: u64,
    /// Bytes of the buffer.
    content_bytes: u64,
    /// Name of the unfinished file.
    name: String,
}

impl FileSink {
    /// Opens the first file and writes its header, so that errors of the target are reported here.
    pub fn create(options: SinkOptions) -> Result<Self, SinkError> {
        Self::open(options, None)
    }

    /// Opens the first file like [`FileSink::create`], and writes an [index](crate::index) beside
    /// each complete file. `flow_of` identifies the flows of frames.
    ///
    /// # Errors
    /// As for [`FileSink::create`]; the target is no regular file, or is compressed.
    pub fn create_indexed(options: SinkOptions, flow_of: FlowOf) -> Result<Self, SinkError> {
        let index = Indexing::new(flow_of, &options);
        Self::open(options, Some(index))
    }

    fn open(options: SinkOptions, mut index: Option<Indexing>) -> Result<Self, SinkError> {
        options.check()?;
        if index.is_some() && options.compression.is_some() {
            let fault =
                "a compressed file has no index: leave out --index, or give a name without .zst, .gz or .lz4";
            return Err(SinkError::Usage(fault.into()));
        }
        let mut series = Series::new(&options)?;
        let mut buffer = Vec::with_capacity(FLUSH_BYTES + SNAPLEN_MAX as usize + PACKET_OVERHEAD_MAX);
        let blocks = Blocks::begin(&mut buffer, &options)?;
        let output = Output::create(&series.target(options.start_ns)?, &buffer, options.form())?;
        if index.is_some() && !output.is_renamed() {
            return Err(SinkError::Usage("an index needs the name of a file".into()));
        }
        if let Some(index) = &mut index {
            index.start(&buffer);
        }
        buffer.clear();
        Ok(Self {
            rotate_bytes: options.rotate_bytes.unwrap_or(u64::MAX),
            rotate_at_ns: boundary_after(options.start_ns, &options),
            last_ns: options.start_ns,
            output: Some(output),
            worker: None,
            passed: None,
            spare: Vec::new(),
            extras: Extras::new(&options),
            options,
            series,
            blocks,
            buffer,
            buffered_packets: 0,
            written_packets: 0,
            flushed_at: None,
            statistics: Vec::new(),
            failure: None,
            renamed: None,
            index,
            summary: Summary::default(),
        })
    }

    /// Copies a frame to the buffer. If the frame exceeds a limit of the file, the next file is
    /// opened first.
    ///
    /// After a failed write every call returns the same error. If the format cannot hold a frame,
    /// only this frame is refused. Each frame is counted in [`Summary::packets`] or in
    /// [`FileSink::lost`].
    #[inline]
    pub fn write(&mut self, frame: &FrameRef<'_>) -> Result<(), SinkError> {
        if self.failure.is_some() || self.is_past_a_limit(frame) {
            self.start_next_file(frame).inspect_err(|_| self.summary.lost += 1)?;
        }
        if self.index.is_some() && self.extras.has_waiting() {
            self.place_blocks(Placing::IfTheyFit);
        }
        if let Err(error) = self.blocks.packet(&mut self.buffer, frame) {
            self.summary.lost += 1;
            return Err(error.into());
        }
        if let Some(index) = &mut self.index {
            let before = self.output.as_ref().map_or(0, Output::bytes);
            index.packet(frame, before + self.buffer.len() as u64);
        }
        self.buffered_packets += 1;
        self.last_ns = self.last_ns.max(frame.timestamp_ns);
        if self.buffer.len() < FLUSH_BYTES {
            Ok(())
        } else if self.worker.is_some() {
            self.pass_on()
        } else {
            self.flush()
        }
    }

    /// Starts a thread that compresses full buffers, if the files are compressed. It gets the
    /// capabilities and the CPUs of the calling thread. Without it the thread that writes frames
    /// compresses.
    ///
    /// # Errors
    /// The system has too many threads.
    pub fn start(&mut self) -> Result<(), SinkError> {
        if self.options.compression.is_some() && self.worker.is_none() {
            let failed = |error: std::io::Error| SinkError::Thread(error.into());
            self.worker = Some(Worker::start().map_err(failed)?);
            self.spare.reserve(self.buffer.capacity());
        }
        Ok(())
    }

    /// Passes the buffer to the worker, after it has returned the one before.
    fn pass_on(&mut self) -> Result<(), SinkError> {
        self.settle()?;
        self.place_blocks(Placing::IfTheyFit);
        let Some(worker) = &self.worker else { return self.flush() };
        let Some(output) = self.output.take() else { return Ok(()) };
        self.spare.clear();
        let packets = std::mem::take(&mut self.buffered_packets);
        let blocks = std::mem::replace(&mut self.buffer, std::mem::take(&mut self.spare));
        let (bytes, content_bytes) = (output.bytes(), blocks.len() as u64);
        let before = output.content_bytes();
        let extra_blocks = std::mem::take(&mut self.extras.buffered_blocks);
        let passed =
            Passed { packets, extra_blocks, bytes, before, content_bytes, name: output.present_name() };
        match worker.pass(Task { output, blocks, packets, result: Ok(()) }) {
            Ok(()) => self.passed = Some(passed),
            Err(task) => {
                self.worker = None;
                (self.output, self.buffer, self.buffered_packets) =
                    (Some(task.output), task.blocks, task.packets);
                self.extras.buffered_blocks = extra_blocks;
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Waits until the worker has returned the file. If it could not write its buffer, the packets
    /// that wait for the next write are lost as well.
    fn settle(&mut self) -> Result<(), SinkError> {
        let Some(passed) = self.passed.take() else { return Ok(()) };
        let (name, cause) = if let Some(task) = self.worker.as_ref().and_then(Worker::wait) {
            let result = task.result.map_err(|cause| (task.output.name(), cause));
            self.output = Some(task.output);
            self.spare = task.blocks;
            let Err(failed) = result else {
                self.written_packets += passed.packets;
                return Ok(());
            };
            failed
        } else {
            // The file is lost with the thread, and keeps the name of an unfinished one.
            self.summary.packets += self.written_packets;
            self.summary.bytes += passed.bytes;
            self.summary.content_bytes += passed.before;
            (passed.name, std::io::Error::other("the thread that compresses has ended"))
        };
        self.buffer.clear();
        self.summary.lost += passed.packets + std::mem::take(&mut self.buffered_packets);
        self.summary.lost_blocks += passed.extra_blocks + std::mem::take(&mut self.extras.buffered_blocks);
        let error = SinkError::write(name, self.written_packets, passed.bytes, cause);
        self.failure = Some(error.clone());
        Err(error)
    }

    /// Writes the buffered blocks. Call it when no frame is ready, and [`FileSink::flush_due`]
    /// otherwise.
    pub fn flush(&mut self) -> Result<(), SinkError> {
        self.settle()?;
        self.place_blocks(Placing::IfTheyFit);
        let extra_blocks = std::mem::take(&mut self.extras.buffered_blocks);
        let Some(output) = &mut self.output else {
            self.summary.lost_blocks += extra_blocks;
            return Ok(());
        };
        let result = output.write(&self.buffer, &self.blocks);
        let buffered_packets = std::mem::take(&mut self.buffered_packets);
        if let Some(index) = &mut self.index {
            index.written(&self.buffer, result.is_ok());
        }
        self.buffer.clear();
        let Err(partial) = result else {
            self.written_packets += buffered_packets;
            return Ok(());
        };
        self.written_packets += partial.packets;
        self.summary.lost += buffered_packets - partial.packets;
        self.summary.lost_blocks += extra_blocks.saturating_sub(partial.extra_blocks);
        let error = SinkError::write(output.name(), self.written_packets, output.bytes(), partial.cause);
        self.failure = Some(error.clone());
        Err(error)
    }

    /// Flushes if [`FLUSH_EVERY`] has passed since the last time. It is cheap enough for every
    /// batch.
    pub fn flush_due(&mut self, now: Instant) -> Result<(), SinkError> {
        let since = *self.flushed_at.get_or_insert(now);
        if now.saturating_duration_since(since) < FLUSH_EVERY || self.failure.is_some() {
            return Ok(());
        }
        self.flushed_at = Some(now);
        self.flush()
    }

    /// Stores the statistics for the block at the end of a file that rotation completes later.
    pub fn note_statistics(&mut self, statistics: &[Statistics]) {
        self.statistics.clear();
        self.statistics.extend_from_slice(statistics);
    }

    /// Returns the new name of the file of a killed capture, which was renamed when the current
    /// file was opened. Later calls return `None`.
    pub fn take_set_aside(&mut self) -> Option<PathBuf> {
        self.output.as_mut().and_then(Output::take_set_aside)
    }

    /// Returns the last file that got another name than its own, unless it was returned before.
    /// [`Summary::renamed`] counts these files.
    pub fn take_renamed(&mut self) -> Option<Renamed> {
        self.renamed.take()
    }

    /// Returns the number of frames passed to [`FileSink::write`] that are neither in a file nor
    /// waiting for a flush.
    pub fn lost(&self) -> u64 {
        self.summary.lost
    }

    /// Returns the number of bytes written to all files or waiting for a flush. Bytes are counted
    /// after compression.
    pub fn written_bytes(&self) -> u64 {
        let waiting = if self.options.compression.is_some() { 0 } else { self.buffer.len() as u64 };
        self.summary.bytes + self.file_bytes() + waiting
    }

    /// Returns the size of the current file, without the buffer of the worker.
    #[inline]
    fn file_bytes(&self) -> u64 {
        match &self.output {
            Some(output) => output.bytes(),
            None => self.passed.as_ref().map_or(0, |passed| passed.bytes),
        }
    }

    /// Writes the statistics blocks (those of [`FileSink::note_statistics`] if `statistics` is
    /// empty), completes the file and renames it.
    ///
    /// After a failed write it completes the file with the blocks that were written, and does not
    /// return the error of that write again.
    pub fn close(mut self, statistics: &[Statistics]) -> Result<Summary, SinkError> {
        if !statistics.is_empty() {
            self.note_statistics(statistics);
        }
        let failed_before = self.failure.is_some();
        self.place_blocks(Placing::Always);
        match self.complete() {
            Err(SinkError::Write { .. } | SinkError::ReaderClosed { .. }) if failed_before => {}
            result => result?,
        }
        Ok(std::mem::take(&mut self.summary))
    }

    #[inline]
    fn is_past_a_limit(&self, frame: &FrameRef<'_>) -> bool {
        let block = (frame.bytes.len() + packet_overhead(frame)) as u64 + self.extras.reserved_bytes();
        self.bytes_with(block) > self.rotate_bytes || frame.timestamp_ns >= self.rotate_at_ns
    }

    /// Returns the maximum size of the complete file after `block` more bytes.
    #[inline]
    fn bytes_with(&self, block: u64) -> u64 {
        let written = self.file_bytes();
        let passed = self.passed.as_ref().map_or(0, |passed| passed.content_bytes);
        let waiting = passed + self.buffer.len() as u64 + block + self.blocks.closing_bytes();
        let overhead = self.options.compression.map_or(0, |_| Compressor::overhead_max(waiting));
        written + waiting + overhead
    }

    /// Compresses the waiting blocks, after which the file may be within its limit. Returns true if
    /// it is.
    fn fits_compressed(&mut self, frame: &FrameRef<'_>) -> Result<bool, SinkError> {
        if self.passed.is_some() {
            self.settle()?;
            if !self.is_past_a_limit(frame) {
                return Ok(true);
            }
        }
        if self.options.compression.is_none() || self.buffer.len() < COMPRESSED_BYTES_MIN {
            return Ok(false);
        }
        self.flush()?;
        Ok(!self.is_past_a_limit(frame))
    }

    /// Opens the next file if the frame exceeds a limit of the current one.
    #[cold]
    fn start_next_file(&mut self, frame: &FrameRef<'_>) -> Result<(), SinkError> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        if frame.timestamp_ns >= self.rotate_at_ns {
            self.rotate_at_ns = boundary_after(frame.timestamp_ns, &self.options);
            // The worker may have all packets of the file.
            self.settle()?;
        } else if self.fits_compressed(frame)? {
            return Ok(());
        }
        // A file without packets is never completed because of a limit.
        if self.written_packets + self.buffered_packets == 0 {
            return Ok(());
        }
        if self.options.files_max.is_some_and(|files| self.series.opened() >= files) {
            (self.rotate_bytes, self.rotate_at_ns) = (u64::MAX, u64::MAX);
            return Ok(());
        }
        self.rotate(frame.timestamp_ns).inspect_err(|error| self.failure = Some(error.clone()))
    }

    fn rotate(&mut self, opened_ns: u64) -> Result<(), SinkError> {
        self.complete()?;
        self.blocks = Blocks::begin(&mut self.buffer, &self.options)?;
        let waited = self.extras.repeat(&mut self.buffer);
        let target = self.series.target(opened_ns);
        let opened = target.and_then(|target| open_next(&target, &self.buffer, self.options.form()));
        if let Some(index) = &mut self.index {
            index.start(&self.buffer);
        }
        self.buffer.clear();
        let (output, taken) = opened.inspect_err(|_| self.summary.lost_blocks += waited)?;
        if let Some(taken) = taken {
            self.note_renamed(taken, output.name().into());
        }
        self.output = Some(output);
        let deleted = self.series.delete_oldest();
        if deleted > 0 {
            self.summary.deleted += deleted;
            self.summary.first_file =
                self.series.oldest().map_or_else(String::new, |oldest| oldest.display().to_string());
        }
        Ok(())
    }

    /// Completes the file: writes the statistics and the buffer, then renames it. If a step fails
    /// the next ones are tried, so that the written blocks are in a file with its final name.
    /// Returns the first error.
    fn complete(&mut self) -> Result<(), SinkError> {
        let interfaces = self.options.interfaces.len() as u32;
        for statistics in self.closing_statistics(interfaces) {
            // Statistics of an unknown interface are a mistake of the caller; leave them out.
            let _ = self.blocks.statistics(&mut self.buffer, &statistics);
        }
        let flushed = self.flush();
        let Some(mut output) = self.output.take() else { return flushed };
        let written_packets = std::mem::take(&mut self.written_packets);
        let ended = output.end();
        let flushed = flushed.and_then(|()| {
            ended.map_err(|cause| SinkError::write(output.name(), written_packets, output.bytes(), cause))
        });
        self.summary.packets += written_packets;
        self.summary.bytes += output.bytes();
        self.summary.content_bytes += output.content_bytes();
        let Complete { name, taken, place } = output.finish(self.series.can_rename())?;
        if let Some(taken) = taken {
            self.note_renamed(taken, name.clone());
        }
        self.summary.files += 1;
        self.summary.last_file = name.display().to_string();
        if self.summary.first_file.is_empty() {
            self.summary.first_file.clone_from(&self.summary.last_file);
        }
        if let Some(file) = place {
            let index = self.store_index(&name, &file);
            self.series.completed(name, file, index);
        }
        flushed
    }

    /// Writes the index of a complete file, if it should have one. A failure is counted.
    fn store_index(&mut self, name: &Path, file: &CompleteFile) -> Option<CompleteFile> {
        match self.index.as_mut()?.store(name, file) {
            Ok(index) => Some(index),
            Err(reason) => {
                self.summary.unindexed += 1;
                self.summary.last_unindexed = format!("{}: {reason}", name.display());
                None
            }
        }
    }

    fn note_renamed(&mut self, taken: PathBuf, name: PathBuf) {
        self.summary.renamed += 1;
        self.renamed = Some(Renamed { taken, name });
    }

    /// Returns the stored statistics of each interface, with times.
    fn closing_statistics(&self, interfaces: u32) -> Vec<Statistics> {
        let noted = |interface| {
            let found = self.statistics.iter().find(|noted| noted.interface == interface);
            let mut statistics = found.copied().unwrap_or(Statistics { interface, ..Statistics::default() });
            if statistics.timestamp_ns == 0 {
                statistics.timestamp_ns = self.last_ns;
            }
            statistics.start_ns.get_or_insert(self.options.start_ns);
            statistics.end_ns.get_or_insert(self.last_ns);
            statistics
        };
        (0..interfaces).map(noted).collect()
    }
}

impl Drop for FileSink {
    /// Writes the buffered blocks of a sink that was not closed. A regular file keeps its name
    /// `NAME.part`.
    fn drop(&mut self) {
        if self.failure.is_none() {
            let _ = self.flush();
        }
    }
}

/// Opens the next file of a rotation. In a directory such as /tmp another user can predict its name
/// and create the name or its `.part`; the file then gets another name. Returns the refused name,
/// too.
fn open_next(target: &Target, header: &[u8], form: Form) -> Result<(Output, Option<PathBuf>), SinkError> {
    let refusal = match Output::create(target, header, form) {
        Err(refusal @ (SinkError::Create { .. } | SinkError::Busy { .. })) => refusal,
        opened => return Ok((opened?, None)),
    };
    for _ in 0..OTHER_NAMES_MAX {
        if let Ok(output) = Output::create(&Series::random_instead_of(target), header, form) {
            let taken = match target {
                Target::Path(path) => Some(path.clone()),
                Target::Stdout => None,
            };
            return Ok((output, taken));
        }
    }
    Err(refusal)
}

/// Converts a captured frame for the sink. `interface` is the number of its interface in the file.
pub fn frame_ref<'a>(frame: &Frame<'a>, interface: u32) -> FrameRef<'a> {
    FrameRef {
        timestamp_ns: frame.timestamp_ns,
        bytes: frame.bytes,
        wire_len: frame.wire_len,
        interface,
        direction: frame.direction.known(),
        queue: Some(frame.queue),
        comment: None,
    }
}
