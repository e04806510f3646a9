//! Files of a query: capture files, or the Parquet files of `strait capture --to`.
//!
//! Every file is looked at before the query starts, so that a wrong one is reported at once.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use datafusion::parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};
use strait_capture::file::FileReader;
use strait_program::Error;
use strait_table::schema::{TABLE_KEY, TABLES};

use crate::error::of_file;

/// Maximum number of files on the command line.
const FILES_MAX: usize = 100_000;
/// First bytes of a Parquet file.
const PARQUET: &[u8; 4] = b"PAR1";

/// Files of a query.
#[derive(Debug)]
pub(crate) enum Sources {
    /// No file: queries without a table.
    None,
    /// Capture files in pcap or pcapng.
    Captures(Vec<String>),
    /// Files and directories of each table.
    Tables(BTreeMap<&'static str, Vec<Stored>>),
}

/// Part of a table in Parquet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    /// Directory of a table, with partitions below it.
    Directory(PathBuf),
    /// One file.
    File(PathBuf),
}

/// Content of one argument.
enum Content {
    Capture,
    Tables(Vec<(&'static str, Stored)>),
}

impl Sources {
    /// Examines the files.
    ///
    /// # Errors
    /// A file is missing, is neither a capture nor a table, or is of another sort than the first.
    pub(crate) fn find(files: &[String]) -> Result<Self, Error> {
        if files.len() > FILES_MAX {
            return Err(Error::usage(format!("give at most {FILES_MAX} files")));
        }
        let mut captures = Vec::new();
        let mut tables = BTreeMap::<_, Vec<_>>::new();
        for file in files {
            match content(file)? {
                Content::Capture => captures.push(file.clone()),
                Content::Tables(found) => {
                    for (table, stored) in found {
                        tables.entry(table).or_default().push(stored);
                    }
                }
            }
            if !captures.is_empty() && !tables.is_empty() {
                return Err(Error::usage(format!(
                    "{file}: give capture files, or tables in Parquet, but not both in one query"
                )));
            }
        }
        Ok(match (captures.is_empty(), tables.is_empty()) {
            (true, true) => Self::None,
            (false, _) => Self::Captures(captures),
            (true, false) => Self::Tables(tables),
        })
    }

    /// Returns the names of the tables.
    pub(crate) fn names(&self) -> Vec<&'static str> {
        match self {
            Self::None => Vec::new(),
            Self::Captures(_) => crate::capture::TABLES.iter().map(|table| table.name()).collect(),
            Self::Tables(tables) => tables.keys().copied().collect(),
        }
    }
}

fn content(file: &str) -> Result<Content, Error> {
    let path = Path::new(file);
    if file == "-" {
        return Err(Error::usage(
            "a query may read its files twice, which a pipe does not permit: give a file",
        ));
    }
    let metadata = fs::metadata(path).map_err(|error| of_file("open", path, error))?;
    if metadata.is_dir() {
        return directory(path);
    }
    if !metadata.is_file() {
        return Err(Error::usage(format!("{file}: give a file or a directory, not a pipe or a device")));
    }
    if is_parquet(path)? {
        return Ok(Content::Tables(vec![(table_of(path)?, Stored::File(path.to_owned()))]));
    }
    FileReader::open(file).map_err(|error| Error::failed(error.to_string()))?;
    Ok(Content::Capture)
}

/// Returns the tables below a directory.
fn directory(path: &Path) -> Result<Content, Error> {
    let below = |name: &str| path.join(name);
    let found: Vec<(&'static str, Stored)> = TABLES
        .iter()
        .map(|table| table.name)
        .filter(|name| below(name).is_dir())
        .map(|name| (name, Stored::Directory(below(name))))
        .collect();
    if found.is_empty() {
        let names: Vec<&str> = TABLES.iter().map(|table| table.name).collect();
        return Err(Error::failed(format!(
            "{}: no table is in this directory ({}): strait capture --to file:DIR writes them",
            path.display(),
            names.join(", ")
        )));
    }
    Ok(Content::Tables(found))
}

fn is_parquet(path: &Path) -> Result<bool, Error> {
    let mut file = File::open(path).map_err(|error| of_file("open", path, error))?;
    let mut start = [0; PARQUET.len()];
    Ok(file.read_exact(&mut start).is_ok() && start == *PARQUET)
}

/// Reads the footer of a Parquet file.
///
/// # Errors
/// The file cannot be read, or is damaged.
pub(crate) fn footer(path: &Path) -> Result<ParquetMetaData, Error> {
    let file = File::open(path).map_err(|error| of_file("open", path, error))?;
    let footer = ParquetMetaDataReader::new().parse_and_finish(&file);
    footer.map_err(|error| of_file("read", path, error))
}

/// Returns the table that a Parquet file names in its footer.
fn table_of(path: &Path) -> Result<&'static str, Error> {
    let footer = footer(path)?;
    let pairs = footer.file_metadata().key_value_metadata();
    let named = pairs.into_iter().flatten().find(|pair| pair.key == TABLE_KEY);
    let name = named.and_then(|pair| pair.value.as_deref());
    TABLES.iter().map(|table| table.name).find(|table| Some(*table) == name).ok_or_else(|| {
        Error::failed(format!("{}: no table of strait capture, such as packets or flows", path.display()))
    })
}
