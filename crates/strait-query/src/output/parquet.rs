//! Parquet file of a result: complete, or not there.

use std::path::{Path, PathBuf};

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::basic::{Compression, ZstdLevel};
use datafusion::parquet::errors::ParquetError;
use datafusion::parquet::file::properties::WriterProperties;
use strait_program::Error;
use strait_program::replace::Replacement;

use crate::error::of_file;

/// Bytes of a row group, which is in memory while it is written.
const GROUP_BYTES: usize = 64 << 20;

/// File that is being written.
pub(crate) struct ParquetOutput {
    path: PathBuf,
    writer: ArrowWriter<Replacement>,
}

impl ParquetOutput {
    pub(super) fn create(path: &Path, schema: &SchemaRef) -> Result<Self, Error> {
        let file = Replacement::create(path).map_err(|error| of_file("create", path, error))?;
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_created_by(concat!("strait version ", env!("CARGO_PKG_VERSION")).to_owned())
            .build();
        let writer = ArrowWriter::try_new(file, schema.clone(), Some(properties));
        Ok(Self { path: path.to_owned(), writer: writer.map_err(|error| failed(path, &error))? })
    }

    pub(super) fn write(&mut self, batch: &RecordBatch) -> Result<(), Error> {
        let written = self.writer.write(batch).and_then(|()| {
            if self.writer.in_progress_size() < GROUP_BYTES { Ok(()) } else { self.writer.flush() }
        });
        written.map_err(|error| failed(&self.path, &error))
    }

    pub(super) fn finish(self) -> Result<(), Error> {
        let file = self.writer.into_inner().map_err(|error| failed(&self.path, &error))?;
        file.complete().map_err(|error| of_file("write", &self.path, error))
    }
}

fn failed(path: &Path, error: &ParquetError) -> Error {
    of_file("write", path, error)
}
