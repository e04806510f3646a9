//! Policies of libCacheSim, by its Python package.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::process::Command;

use super::reference::next_requests;
use super::trace::Trace;
use crate::error::{Error, Result};
use crate::results::Figures;

/// Program that runs one policy: takes policy, trace and capacity, prints two ratios of misses.
const PROGRAM: &str = include_str!("../../peers/cache_simulator.py");

/// Checks that the package is installed.
pub(super) fn probe() -> Result<()> {
    python(&["-c", "import libcachesim"]).map(drop).map_err(|_| {
        Error::Invalid(
            "the Python package libcachesim is not installed: pip install libcachesim==0.3.5".into(),
        )
    })
}

pub(super) fn run(policy: &str, trace: &Trace, capacity_bytes: u64, dir: &Path) -> Result<Figures> {
    let path = dir.join(format!("strait-trace-{}", std::process::id()));
    let output = write(trace, &path).and_then(|()| {
        let path = path.to_string_lossy();
        python(&["-c", PROGRAM, policy, &path, &capacity_bytes.to_string()])
    });
    let _ = std::fs::remove_file(&path);
    let output = output?;
    let ratios: Option<Vec<f64>> = output.split_whitespace().map(|ratio| ratio.parse().ok()).collect();
    match ratios.as_deref() {
        Some(&[misses, miss_bytes]) => Ok(Figures::from([
            ("hit_percent".to_owned(), 100.0 * (1.0 - misses)),
            ("hit_bytes_percent".to_owned(), 100.0 * (1.0 - miss_bytes)),
        ])),
        _ => Err(Error::Invalid(format!("libcachesim printed {output}"))),
    }
}

fn python(arguments: &[&str]) -> Result<String> {
    let output = Command::new("python3")
        .args(arguments)
        .output()
        .map_err(|error| Error::file("execute python3", error))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let last = text.lines().last().unwrap_or_default();
    let message = format!("{}, {last}", output.status);
    Err(Error::Program { program: "python3".into(), message })
}

/// Writes a trace in libCacheSim's format oracleGeneral: time (4 bytes), object (8), size (4),
/// index of the next request for the object or -1 (8).
fn write(trace: &Trace, path: &Path) -> Result<()> {
    let written = File::create_new(path).and_then(|file| {
        let mut file = BufWriter::new(file);
        for (time, (request, next)) in (0_u32..).zip(trace.iter().zip(next_requests(trace))) {
            let next = next.map_or(-1, |next| next as i64);
            file.write_all(&(1 + time / 1000).to_le_bytes())?;
            // Object 0 is not allowed.
            file.write_all(&(request.object + 1).to_le_bytes())?;
            file.write_all(&(request.bytes as u32).to_le_bytes())?;
            file.write_all(&next.to_le_bytes())?;
        }
        file.flush()
    });
    written.map_err(|error| Error::file(format!("write {}", path.display()), error))
}
