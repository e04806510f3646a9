//! Places of tables.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use strait_table::export::Exporter;

use super::upload::Upload;

/// Open place of tables.
#[derive(Clone)]
pub(super) enum Place {
    Directory(PathBuf),
    Bucket(Arc<Upload>),
    Export(Arc<Exporter>),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(directory) => write!(f, "below {}", directory.display()),
            Self::Bucket(upload) => write!(f, "in {}", upload.bucket()),
            Self::Export(exporter) => write!(f, "to {}", exporter.name()),
        }
    }
}
