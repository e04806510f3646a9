//! `--index`: writes the indexes of capture files.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use strait_capture::file::PacketRef;
use strait_capture::index::{build, path_of};
use strait_program::Error;
use strait_program::output::warn;
use strait_program::replace::Replacement;
use strait_table::flows::FlowIds;

use crate::error::of_file;

/// Writes an index beside each file. The failure of a file does not stop the others.
///
/// # Errors
/// A file cannot be read to its end, or its index cannot be written.
pub(crate) fn write(files: &[String]) -> Result<(), Error> {
    if files.is_empty() {
        return Err(Error::usage("--index: give capture files"));
    }
    let mut ids = FlowIds::new();
    let mut last = None;
    for file in files {
        if let Some(failure) = write_one(file, &mut ids).err().and_then(|failure| last.replace(failure)) {
            warn(format_args!("{failure}\n"));
        }
    }
    last.map_or(Ok(()), Err)
}

fn write_one(file: &str, ids: &mut FlowIds) -> Result<(), Error> {
    let flow_of =
        |packet: &PacketRef<'_>| ids.of(packet.bytes, u16::try_from(packet.link_type).unwrap_or(u16::MAX));
    let index = build(file, flow_of).map_err(|error| Error::failed(error.to_string()))?;
    let path = path_of(Path::new(file));
    replace(Path::new(file), &path, &index).map_err(|error| of_file("write", &path, error))
}

/// Writes the index with the mode of its capture file, of which it tells the flows and times.
fn replace(capture: &Path, path: &Path, index: &[u8]) -> io::Result<()> {
    let mut file = Replacement::create(path)?;
    file.permit(fs::metadata(capture)?.mode() & 0o666)?;
    file.write_all(index)?;
    file.complete()
}
