//! Parquet files of `strait capture --to` as tables of the engine.
//!
//! A directory of a table has partitions below it, `date=/hour=/sensor=`, which are columns. The
//! engine skips partitions and row groups that a query excludes.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::catalog::TableProvider;
use datafusion::datasource::empty::EmptyTable;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::{ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl};
use datafusion::execution::context::SessionState;
use strait_program::Error;
use strait_table::schema::{Column, PARTITIONS, TABLES};
use url::Url;

use crate::error::{of_file, of_query};
use crate::source::{self, Stored};

/// Suffix of complete files.
const SUFFIX: &str = ".parquet";
/// Depth of the directories of files: one for each partition.
const DEPTH: usize = PARTITIONS.len();
/// Maximum depth of directories that are searched for files.
const DEPTH_MAX: usize = DEPTH + 1;

/// Returns the table `name` of these files and directories.
///
/// # Errors
/// A file is damaged; a directory cannot be read.
pub(crate) async fn table(
    state: &SessionState,
    name: &str,
    parts: &[Stored],
) -> Result<Arc<dyn TableProvider>, Error> {
    let mut urls = Vec::new();
    for part in parts {
        match part {
            Stored::Directory(path) => {
                if let Some(error) = find_file(path, DEPTH_MAX, &|file| left_out(path, file))? {
                    return Err(error);
                }
                if find_file(path, DEPTH_MAX, &|_| Some(()))?.is_some() {
                    urls.push(url(path, true)?);
                }
            }
            Stored::File(path) => urls.push(url(path, false)?),
        }
    }
    if urls.is_empty() {
        return Ok(Arc::new(EmptyTable::new(whole_schema(name))));
    }
    let has_partitions = parts.iter().all(|part| matches!(part, Stored::Directory(_)));
    let partitions = PARTITIONS.map(|(name, _)| (name.to_owned(), DataType::Utf8));
    let options = ListingOptions::new(Arc::new(ParquetFormat::default()))
        .with_file_extension(SUFFIX)
        .with_table_partition_cols(if has_partitions { partitions.to_vec() } else { Vec::new() });
    let schema = schema(state, &options, &urls, parts).await?;
    let config =
        ListingTableConfig::new_with_multi_paths(urls).with_listing_options(options).with_schema(schema);
    Ok(Arc::new(ListingTable::try_new(config).map_err(|error| of_query(&error))?))
}

/// Returns an error for a file that the engine would leave out without a word: it is empty, or not
/// in a partition of the table's directory.
fn left_out(directory: &Path, file: &Path) -> Option<Error> {
    let depth = file.strip_prefix(directory).map_or(0, |path| path.components().count() - 1);
    if depth != DEPTH {
        return Some(of_file("read", file, "it is not below date=/hour=/sensor=: query it by its name"));
    }
    let is_empty = fs::metadata(file).is_ok_and(|found| found.len() == 0);
    is_empty.then(|| of_file("read", file, "it is empty: remove it"))
}

/// Returns the columns of all files: captures can select different ones.
async fn schema(
    state: &SessionState,
    options: &ListingOptions,
    urls: &[ListingTableUrl],
    parts: &[Stored],
) -> Result<SchemaRef, Error> {
    let mut schemas = Vec::new();
    for url in urls {
        let schema = match options.infer_schema(state, url).await {
            Ok(schema) => schema,
            // The engine does not name the file.
            Err(error) => return Err(damaged(parts).unwrap_or_else(|| of_query(&error))),
        };
        schemas.push(schema.as_ref().clone());
    }
    let merged = Schema::try_merge(schemas);
    merged.map(Arc::new).map_err(|error| Error::failed(format!("the files have different columns: {error}")))
}

/// Returns the error of the first file with a damaged footer.
fn damaged(parts: &[Stored]) -> Option<Error> {
    let error = |path: &Path| source::footer(path).err();
    parts.iter().find_map(|part| match part {
        Stored::File(path) => error(path),
        Stored::Directory(path) => find_file(path, DEPTH_MAX, &error).unwrap_or_else(Some),
    })
}

/// Returns the schema of a table without files.
fn whole_schema(name: &str) -> SchemaRef {
    let columns = TABLES.iter().filter(|table| table.name == name).flat_map(|table| table.columns);
    let partitions = PARTITIONS.map(|(name, _)| Field::new(name, DataType::Utf8, true));
    Arc::new(Schema::new(columns.map(Column::field).chain(partitions).collect::<Vec<_>>()))
}

fn url(path: &Path, is_directory: bool) -> Result<ListingTableUrl, Error> {
    let path = fs::canonicalize(path).map_err(|error| of_file("open", path, error))?;
    let url = if is_directory { Url::from_directory_path(&path) } else { Url::from_file_path(&path) };
    let url = url.map_err(|()| of_file("open", &path, "the path is not valid"))?;
    // Not parsed as text: names of directories may have characters of patterns.
    ListingTableUrl::try_new(url, None).map_err(|error| of_query(&error))
}

/// Calls `find` for each complete file below a directory, until it returns something.
fn find_file<T>(
    directory: &Path,
    depth: usize,
    find: &impl Fn(&Path) -> Option<T>,
) -> Result<Option<T>, Error> {
    let failed = |error| of_file("read", directory, error);
    for entry in fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        // Unfinished files start with a dot.
        if name.starts_with('.') {
            continue;
        }
        let path = entry.path();
        let found = match path.is_dir() {
            true if depth > 0 => find_file(&path, depth - 1, find)?,
            false if name.ends_with(SUFFIX) => find(&path),
            _ => None,
        };
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}
