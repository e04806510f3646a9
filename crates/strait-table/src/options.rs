//! Options of tables.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::error::TableError;
use crate::flows::FlowLimits;
use crate::messages::SelectedMessages;
use crate::packets::Columns;
use crate::spool::Spool;

/// Maximum length of a sensor's name.
const SENSOR_LEN_MAX: usize = 64;
/// Size at which a file is completed.
pub const ROTATE_BYTES: u64 = 128 << 20;
/// Smallest permitted size: a file has a footer of some kilobytes.
const ROTATE_BYTES_MIN: u64 = 64 << 10;
/// Age at which a file is completed.
pub const ROTATE_EVERY: Duration = Duration::from_mins(5);

/// Selection of tables. The ledger is always written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Selected {
    /// Write the table `packets`.
    pub packets: bool,
    /// Write the table `flows`.
    pub flows: bool,
    /// Tables of messages.
    pub messages: SelectedMessages,
}

impl Default for Selected {
    fn default() -> Self {
        Self { packets: true, flows: true, messages: SelectedMessages::default() }
    }
}

impl Selected {
    /// Parses a list of tables.
    ///
    /// # Errors
    /// Another name.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut selected = Self { packets: false, flows: false, ..Self::default() };
        let messages = &mut selected.messages;
        for word in text.split(',') {
            match word {
                "packets" => selected.packets = true,
                "flows" => selected.flows = true,
                "dns" => messages.dns = true,
                "tls" => messages.tls = true,
                "http" => messages.http = true,
                unknown => {
                    return Err(format!("{unknown}: no such table; give some of packets,flows,dns,tls,http"));
                }
            }
        }
        Ok(selected)
    }
}

/// Numbers of the files of a capture. Sinks that share them have no file name in common.
#[derive(Clone, Debug, Default)]
pub struct FileNumbers(Arc<AtomicU64>);

impl FileNumbers {
    /// Returns the next number, from 1 on.
    pub(crate) fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// Options of the tables of a capture.
#[derive(Clone, Debug)]
pub struct Options {
    /// Directory of the tables.
    pub directory: PathBuf,
    /// Name of the sensor, as [`sensor_name`] permits.
    pub sensor: String,
    /// Identifier of the capture, unique among those of the directory.
    pub capture: String,
    /// Numbers of its files.
    pub numbers: FileNumbers,
    /// Tables of packets and flows.
    pub selected: Selected,
    /// Limits of the table of flows.
    pub flows: FlowLimits,
    /// Columns of the table `packets`.
    pub columns: Columns,
    /// Maximum bytes of a packet in the column `frame`, if there is one.
    pub frame_bytes: u32,
    /// Size in bytes after which a file is completed.
    pub rotate_bytes: u64,
    /// Age after which a file is completed.
    pub rotate_every: Duration,
    /// Limit of the directory, if another program empties it.
    pub spool: Option<Arc<Spool>>,
    /// True if a full queue delays the capture, which then loses no packet: for files.
    pub waits: bool,
}

impl Options {
    /// Checks the limits.
    ///
    /// # Errors
    /// The size of a file is too small.
    pub fn check(&self) -> Result<(), TableError> {
        if self.rotate_bytes < ROTATE_BYTES_MIN {
            let least = ROTATE_BYTES_MIN >> 10;
            return Err(TableError::Usage(format!(
                "a Parquet file of {} bytes is too small: give at least {least}KiB",
                self.rotate_bytes
            )));
        }
        Ok(())
    }
}

/// Checks the name of a sensor, which is part of a directory's name.
///
/// # Errors
/// The name is empty or too long, starts with a dot, or has a character other than letters, digits,
/// `.`, `_` and `-`.
pub fn sensor_name(name: &str) -> Result<String, String> {
    let is_permitted = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if name.is_empty()
        || name.len() > SENSOR_LEN_MAX
        || name.starts_with('.')
        || !name.chars().all(is_permitted)
    {
        return Err(format!("give 1 to {SENSOR_LEN_MAX} letters, digits, '.', '_' or '-', and no '.' first"));
    }
    Ok(name.to_owned())
}
