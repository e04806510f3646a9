//! Parquet file that is valid after each row group.
//!
//! The footer of a Parquet file is at its end. Here each row group is followed by a footer for all
//! row groups so far, and the next row group is appended after it: a footer costs some kilobytes,
//! and readers use only the last one. So a file is complete whenever it ends with a footer. After a
//! failed write, such as on a full disk, it is truncated to the last footer, which needs no space;
//! `recovery` does the same for the file of a killed capture.
//!
//! ```text
//! PAR1 | row group 1 | footer 1 | row group 2 | footers 1, 2 | ... | last footer
//! ```
//!
//! A file is created as `.NAME.new` and locked, then written as `.NAME.part`, and is renamed to
//! `NAME` when it is complete. So a `.part` file is locked for as long as its capture runs, and
//! `recovery` never takes one that is about to be locked. It removes a `.new` file that is a minute
//! old and not locked; a capture that was stopped for so long just then creates it again. Query
//! engines skip names that start with a dot.
//!
//! A lock needs read permission only. So an unfinished file has the mode 0600: other users could
//! otherwise lock it, which would stop the capture or keep a killed one's file from `recovery`.

use std::ffi::OsString;
use std::fs::{File, TryLockError};
use std::io::{self, Seek as _, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::ArrowWriterOptions;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::{
    FileMetaData, KeyValue, ParquetMetaData, ParquetMetaDataWriter, RowGroupMetaData,
};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::ColumnPath;
use rustix::fs::{AtFlags, Mode, OFlags, fchmod, fstat, openat, unlinkat};
use rustix::io::Errno;
use strait_os::output::{self, RenameError};
use strait_os::process::umask;

use crate::error::TableError;
use crate::schema::{self, Kind, Table};

/// Suffix of an unfinished file, whose name starts with a dot.
pub(crate) const UNFINISHED: &str = ".part";
/// Suffix of a file that is not locked yet.
pub(crate) const UNLOCKED: &str = ".new";
/// Attempts to create a file that a recovery removes, or another process locks, or of which an
/// upload removes the directory, meanwhile.
const ATTEMPTS_MAX: usize = 8;
/// Modes of an unfinished and of a complete file, before the umask.
const UNFINISHED_MODE: Mode = Mode::from_bits_retain(0o600);
const COMPLETE_MODE: Mode = Mode::from_bits_retain(0o666);
/// Level of zstd: higher levels cost several times the CPU time for a few percent of size.
const ZSTD_LEVEL: i32 = 1;
/// Level of zstd for numbers without a dictionary, as in TCP's fields: the first level with two
/// tables of matches, which finds the numbers of other packets of a flow. Acknowledgment numbers
/// become a quarter smaller.
const ZSTD_LEVEL_OF_NUMBERS: i32 = 4;
/// Version of the Parquet format in the footer: 1 has pages that every engine reads.
const FORMAT_VERSION: i32 = 1;

/// Unfinished file with its final name.
#[derive(Debug)]
pub(crate) struct Part {
    directory: OwnedFd,
    entry: OsString,
    whole: OsString,
    path: PathBuf,
    file: File,
}

impl Part {
    /// Creates and locks `.NAME.part` in `directory`, which is created if it is missing.
    pub(crate) fn create(directory: &Path, name: &str) -> Result<Self, TableError> {
        let path = directory.join(name);
        let failed = |source: io::Error| TableError::io("create", &path, source);
        let entry = OsString::from(format!(".{name}{UNFINISHED}"));
        let unlocked = OsString::from(format!(".{name}{UNLOCKED}"));
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        for _ in 0..ATTEMPTS_MAX {
            let opened = output::create_directory(directory);
            let created = opened.and_then(|opened| {
                let file = openat(&opened, &unlocked, flags, UNFINISHED_MODE)?;
                Ok((opened, File::from(file)))
            });
            let (opened, file) = match created {
                // An upload has removed the directory, which is empty.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                created => created.map_err(failed)?,
            };
            if !lock(&file) {
                match unlinkat(&opened, &unlocked, AtFlags::empty()) {
                    Ok(()) | Err(Errno::NOENT) => continue,
                    Err(errno) => return Err(failed(errno.into())),
                }
            }
            match output::rename_new(&opened, (&unlocked, &entry), &file) {
                Ok(()) => return Ok(Self { directory: opened, entry, whole: name.into(), path, file }),
                Err(RenameError::Replaced) => {}
                Err(RenameError::Os(error)) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(failed(io::Error::other(error))),
            }
        }
        Err(failed(io::Error::other("another process removes or locks it each time")))
    }

    /// Uses the file `.NAME` with `suffix` of a killed capture, which the caller has locked. `name`
    /// is its final name in `directory`, the path of which is `path`.
    pub(crate) fn adopt(directory: OwnedFd, path: &Path, (name, suffix): (&str, &str), file: File) -> Self {
        let entry = OsString::from(format!(".{name}{suffix}"));
        Self { directory, entry, whole: name.into(), path: path.join(name), file }
    }

    /// Returns true if the unfinished file still has its name.
    pub(crate) fn is_present(&self) -> bool {
        output::is_entry(&self.directory, &self.entry, &self.file)
    }

    /// Makes `bytes` the length of the file.
    pub(crate) fn truncate(&mut self, bytes: u64) -> Result<(), TableError> {
        let truncated = self.file.set_len(bytes).and_then(|()| self.file.seek(SeekFrom::Start(bytes)));
        truncated.map(drop).map_err(|source| TableError::io("truncate", &self.path, source))
    }

    fn sync(&self) -> Result<(), TableError> {
        self.file.sync_data().map_err(|source| TableError::io("store", &self.path, source))
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), TableError> {
        self.file.write_all(bytes).map_err(|source| TableError::io("write", &self.path, source))
    }

    /// Gives the file the mode that the umask permits. A file system without modes ignores that of
    /// a new file, and may refuse another one.
    fn publish(&self) -> io::Result<()> {
        let umask = Mode::from_raw_mode(umask());
        let mode = Mode::from_raw_mode(fstat(&self.file)?.st_mode);
        if mode == UNFINISHED_MODE - umask {
            fchmod(&self.file, COMPLETE_MODE - umask)?;
        }
        Ok(())
    }

    /// Stores the content and gives the file its mode and its name. A file of that name is not
    /// replaced.
    pub(crate) fn complete(self) -> Result<PathBuf, TableError> {
        self.publish().map_err(|source| TableError::io("set the mode of", &self.path, source))?;
        // A power loss after the rename must not leave an empty file with the final name.
        self.sync()?;
        output::rename_new(&self.directory, (&self.entry, &self.whole), &self.file)
            .map_err(|error| TableError::io("rename", &self.path, io::Error::other(error)))?;
        Ok(self.path)
    }

    /// Deletes the unfinished file.
    pub(crate) fn remove(self) -> Result<(), TableError> {
        unlinkat(&self.directory, &self.entry, AtFlags::empty())
            .map_err(|errno| TableError::io("remove", &self.path, errno))
    }
}

/// Locks a new file. Returns false if another process has locked it.
pub(crate) fn lock(file: &File) -> bool {
    loop {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => return false,
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            // Some network file systems have no locks. A later capture then cannot tell whether the
            // file is that of a killed one, and leaves it alone.
            Ok(()) | Err(TryLockError::Error(_)) => return true,
        }
    }
}

/// Encoded bytes that are not yet in the file.
#[derive(Default)]
struct Staged(Vec<u8>);

impl Write for Staged {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Parquet file that is being written.
pub(crate) struct ParquetFile {
    table: &'static str,
    writer: ArrowWriter<Staged>,
    part: Part,
    metadata: Vec<KeyValue>,
    /// Length up to the last footer in the file.
    durable_bytes: u64,
    /// Rows before the last footer in the file.
    durable_rows: u64,
}

impl ParquetFile {
    /// Starts a file of `table`. `metadata` is stored as key-value pairs.
    pub(crate) fn create(
        table: &Table,
        schema: SchemaRef,
        metadata: &[(&str, &str)],
        part: Part,
    ) -> Result<Self, TableError> {
        let metadata: Vec<KeyValue> = metadata
            .iter()
            .map(|(key, value)| KeyValue::new((*key).to_owned(), (*value).to_owned()))
            .collect();
        let options = ArrowWriterOptions::new()
            .with_properties(properties(table, metadata.clone()))
            // Parquet's own types are enough, and every engine reads them.
            .with_skip_arrow_metadata(true);
        let failed = |error| TableError::encode(table.name, error);
        let writer = ArrowWriter::try_new_with_options(Staged::default(), schema, options).map_err(failed)?;
        Ok(Self { table: table.name, writer, part, metadata, durable_bytes: 0, durable_rows: 0 })
    }

    /// Encodes rows in memory.
    pub(crate) fn write(&mut self, batch: &RecordBatch) -> Result<(), TableError> {
        self.writer.write(batch).map_err(|error| TableError::encode(self.table, error))
    }

    /// Returns the number of rows in memory.
    pub(crate) fn rows_in_memory(&self) -> usize {
        self.writer.in_progress_rows()
    }

    /// Returns the number of encoded bytes in memory.
    pub(crate) fn bytes_in_memory(&self) -> usize {
        self.writer.in_progress_size()
    }

    /// Returns the bytes so far, with those in memory.
    pub(crate) fn bytes(&self) -> u64 {
        (self.writer.bytes_written() + self.writer.in_progress_size()) as u64
    }

    /// Returns the number of rows on disk.
    pub(crate) fn durable_rows(&self) -> u64 {
        self.durable_rows
    }

    /// Writes the rows in memory as a row group, with a footer. After a failure the file has the
    /// earlier row groups, and this one is lost.
    pub(crate) fn end_group(&mut self) -> Result<(), TableError> {
        let rows = self.writer.in_progress_rows();
        if rows == 0 {
            return Ok(());
        }
        let encoded = self.encode_group();
        let data_bytes = encoded.map_err(|error| TableError::encode(self.table, error))?;
        self.store(data_bytes)?;
        self.durable_rows += rows as u64;
        Ok(())
    }

    /// Encodes the row group and its footer. Returns the bytes before the footer.
    fn encode_group(&mut self) -> Result<usize, ParquetError> {
        self.writer.flush()?;
        let footer = self.footer()?;
        self.writer.sync()?;
        let data_bytes = self.writer.inner().0.len();
        self.writer.write_all(&footer)?;
        self.writer.sync()?;
        Ok(data_bytes)
    }

    /// Returns the footer for the row groups so far.
    fn footer(&self) -> Result<Vec<u8>, ParquetError> {
        let groups = self.writer.flushed_row_groups().to_vec();
        let mut footer = Vec::new();
        let Some(schema) = groups.first().map(RowGroupMetaData::schema_descr_ptr) else { return Ok(footer) };
        let rows = groups.iter().map(RowGroupMetaData::num_rows).sum();
        let metadata = Some(self.metadata.clone());
        let file = FileMetaData::new(FORMAT_VERSION, rows, Some(created_by()), metadata, schema, None);
        ParquetMetaDataWriter::new(&mut footer, &ParquetMetaData::new(file, groups)).finish()?;
        Ok(footer)
    }

    /// Appends the encoded bytes to the file, of which `data_bytes` are before the footer.
    fn store(&mut self, data_bytes: usize) -> Result<(), TableError> {
        let staged = std::mem::take(&mut self.writer.inner_mut().0);
        let (data, footer) = staged.split_at(data_bytes.min(staged.len()));
        // A power loss must not leave a footer without its row group: a recovery trusts the footer.
        let stored = self.part.append(data).and_then(|()| self.part.sync());
        let stored = stored.and_then(|()| self.part.append(footer));
        if stored.is_err() {
            // A file without a row group is removed.
            self.part.truncate(self.durable_bytes)?;
        }
        stored?;
        self.durable_bytes += staged.len() as u64;
        Ok(())
    }

    /// Gives the file its name. Rows in memory are not written: call [`ParquetFile::end_group`]
    /// first. Returns its size in bytes.
    pub(crate) fn complete(self) -> Result<u64, TableError> {
        self.part.complete()?;
        Ok(self.durable_bytes)
    }

    /// Deletes the file.
    pub(crate) fn remove(self) -> Result<(), TableError> {
        self.part.remove()
    }
}

fn created_by() -> String {
    concat!("strait version ", env!("CARGO_PKG_VERSION")).to_owned()
}

fn zstd(level: i32) -> Compression {
    Compression::ZSTD(ZstdLevel::try_new(level).unwrap_or_default())
}

/// Returns the encoding of each column.
fn properties(table: &Table, metadata: Vec<KeyValue>) -> WriterProperties {
    let mut builder = WriterProperties::builder()
        .set_created_by(created_by())
        .set_key_value_metadata(Some(metadata))
        .set_compression(zstd(ZSTD_LEVEL))
        .set_statistics_enabled(EnabledStatistics::Chunk)
        // An index of pages follows the last footer only, which here is written with each group.
        .set_offset_index_disabled(true)
        // Groups end by `end_group` only.
        .set_max_row_group_row_count(None);
    for column in table.columns {
        let path = ColumnPath::from(column.name);
        let encoding = match column.encoding {
            schema::Encoding::Dictionary => continue,
            schema::Encoding::Plain => Encoding::PLAIN,
            schema::Encoding::Delta => Encoding::DELTA_BINARY_PACKED,
        };
        if encoding == Encoding::PLAIN && matches!(column.kind, Kind::U16 | Kind::U32) {
            builder = builder.set_column_compression(path.clone(), zstd(ZSTD_LEVEL_OF_NUMBERS));
        }
        builder =
            builder.set_column_dictionary_enabled(path.clone(), false).set_column_encoding(path, encoding);
    }
    builder.build()
}
