//! Blocks of an output file that belong to no packet: the lines of a key log, the names of
//! addresses, and the blocks of the input file.

use std::path::Path;

use strait_capture::extra::{ExtraBlocks, ExtraKind};
use strait_capture::key_log::{KEY_LOG_BYTES_MAX, KEY_LOG_LINES_MAX, KeyLog, KeyLogEvent};
use strait_capture::sink::{FileSink, SinkError, Summary};
use strait_program::output::print_stderr;

use super::names::{ADDRESSES_MAX, Names};
use crate::Error;

/// Maximum bytes of the lines in one block.
const BLOCK_BYTES_MAX: u64 = 1 << 20;
/// Maximum share of a block in a file of limited size.
const BLOCK_SHARE: u64 = 16;

/// Lines may have this many times the bytes of names: a file holds fewer names than secrets.
const NAMES_DIVISOR: usize = 4;

/// Sources of the blocks.
#[derive(Debug, Default)]
pub(super) struct Extras {
    key_log: Option<KeyLog>,
    /// Blocks that the reader of the input file has found.
    input: Option<ExtraBlocks>,
    /// Rule for those with secrets.
    secrets: CopiedSecrets,
    /// Names that the captured packets have, and the link type of each input.
    names: Option<(Names, Vec<u16>)>,
    /// Maximum bytes of the lines in one block.
    block_bytes_max: usize,
    /// True before the first packet of a batch.
    is_due: bool,
}

/// Secrets of the input file.
#[derive(Clone, Copy, Debug)]
pub(super) enum CopiedSecrets {
    /// Copy them. The field has the number of blocks so far.
    Copied(u64),
    Omitted,
}

impl Default for CopiedSecrets {
    fn default() -> Self {
        Self::Copied(0)
    }
}

impl Extras {
    /// Opens the key log. The input is a file if it has blocks; the log is then complete.
    pub(super) fn open(
        key_log: Option<&Path>,
        input: Option<ExtraBlocks>,
        rotate_bytes: Option<u64>,
    ) -> Result<Self, Error> {
        let failed = |error: strait_capture::key_log::KeyLogError| Error::Failed(error.to_string());
        let mut key_log = key_log.map(KeyLog::open).transpose().map_err(failed)?;
        if let (Some(log), Some(_)) = (&mut key_log, &input) {
            log.complete().map_err(failed)?;
        }
        let limit = rotate_bytes.map_or(BLOCK_BYTES_MAX, |bytes| bytes / BLOCK_SHARE);
        let block_bytes_max = limit.min(BLOCK_BYTES_MAX) as usize;
        Ok(Self {
            key_log,
            input,
            secrets: CopiedSecrets::default(),
            names: None,
            block_bytes_max,
            is_due: true,
        })
    }

    /// Collects names of addresses from now on. `link_types` are those of the inputs.
    pub(super) fn collect_names(&mut self, link_types: Vec<u16>) {
        self.names = Some((Names::default(), link_types));
    }

    /// Leaves out the secrets of the input file.
    pub(super) fn omit_secrets(&mut self) {
        self.secrets = CopiedSecrets::Omitted;
    }

    /// Reads the names in a packet of an input.
    #[inline]
    pub(super) fn read_names(&mut self, input: u32, frame: &[u8]) {
        if let Some((names, link_types)) = &mut self.names
            && let Some(link_type) = link_types.get(input as usize)
        {
            self.is_due |= names.read(*link_type, frame);
        }
    }

    pub(super) fn begin_batch(&mut self) {
        self.is_due = self.key_log.is_some() || self.input.is_some() || self.names.is_some();
    }

    /// Adds the blocks before the first packet of a batch.
    #[inline]
    pub(super) fn add_due(&mut self, sink: &mut FileSink) -> Result<(), SinkError> {
        if self.is_due { self.add(sink) } else { Ok(()) }
    }

    /// Adds the blocks that have come since the last call.
    pub(super) fn add(&mut self, sink: &mut FileSink) -> Result<(), SinkError> {
        self.is_due = false;
        if let Some(input) = &self.input {
            while let Some(block) = input.take() {
                match &mut self.secrets {
                    _ if block.kind() == ExtraKind::Names => {}
                    CopiedSecrets::Copied(copied) => *copied += u64::from(sink.holds_blocks()),
                    CopiedSecrets::Omitted => continue,
                }
                sink.add_block(block)?;
            }
        }
        if let Some((names, _)) = &mut self.names {
            while let Some(block) = names.take_block(self.block_bytes_max / NAMES_DIVISOR) {
                sink.add_block(block)?;
            }
        }
        let Some(log) = &mut self.key_log else { return Ok(()) };
        // A call for each packet of a file would cost more than the packet.
        if self.input.is_none() {
            log.poll();
        }
        while let Some(block) = log.take_block(self.block_bytes_max) {
            sink.add_block(block)?;
        }
        Ok(())
    }

    /// Reports changes of the key log, and the limit of names.
    pub(super) fn report(&mut self) {
        if self.names.as_mut().is_some_and(|(names, _)| names.take_full()) {
            print_stderr(format_args!(
                "strait: note: {ADDRESSES_MAX} addresses have names, the maximum of --names: further addresses get none\n"
            ));
        }
        let Some(log) = &mut self.key_log else { return };
        if self.input.is_none() {
            log.check_name();
        }
        while let Some(event) = log.take_event() {
            let file = log.path().display();
            print_stderr(format_args!("strait: note: the key log {file} {}\n", sentence(event)));
        }
    }

    /// Adds the last lines.
    pub(super) fn finish(&mut self, sink: &mut FileSink) -> Result<(), SinkError> {
        if let Some(log) = self.key_log.as_mut().filter(|_| self.input.is_none()) {
            log.end();
        }
        self.add(sink)
    }

    /// Reports the lines and blocks that are not in the files.
    pub(super) fn report_losses(&mut self, summary: &Summary) {
        self.report();
        if let Some(log) = self.key_log.as_ref().filter(|log| log.malformed() > 0) {
            let (file, lines) = (log.path().display(), log.malformed());
            print_stderr(format_args!(
                "strait: note: malformed lines of the key log {file}, which were left out: {lines}\n"
            ));
        }
        if let CopiedSecrets::Copied(copied @ 1..) = self.secrets {
            print_stderr(format_args!(
                "strait: note: blocks of secrets of the input that were copied: {copied}; they may decrypt connections that \
                 the filter leaves out; --no-secrets omits them\n"
            ));
        }
        let dropped = self.input.as_ref().map_or(0, ExtraBlocks::dropped);
        let lost = summary.lost_blocks + dropped;
        if lost > 0 {
            print_stderr(format_args!(
                "strait: note: blocks of secrets or names that are in no file: {lost}; pcap holds none, and a small file of a \
                 rotation few\n"
            ));
        }
        if summary.unrepeated_blocks > 0 {
            let blocks = summary.unrepeated_blocks;
            print_stderr(format_args!(
                "strait: note: oldest blocks of secrets or names that the last files do not start with: {blocks}; secrets are \
                 limited to half a file, names to a sixteenth\n"
            ));
        }
    }
}

fn sentence(event: KeyLogEvent) -> String {
    match event {
        KeyLogEvent::Truncated => "has become shorter: it is read from its start again".into(),
        KeyLogEvent::Replaced => "was replaced or deleted: lines of a new file are not read".into(),
        KeyLogEvent::Full => format!(
            "has more than {KEY_LOG_BYTES_MAX} bytes or {KEY_LOG_LINES_MAX} lines: further ones are not read"
        ),
        KeyLogEvent::Failed => "cannot be read any more".into(),
        KeyLogEvent::Unfinished => "ends with a part of a line, which was left out".into(),
    }
}
