//! The functions `capture` and `read`: they check their arguments and open a session.

use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyString;
use strait_capture::{Builder, Directions, Path};
use strait_os::wait;
use strait_table::packets::{Columns, PacketBatches};
use strait_table::schema::PACKETS;

use crate::error::Failure;
use crate::reader::{Limits, TICK};
use crate::session::Session;

/// Maximum snaplen, and its default.
const SNAPLEN_MAX: i64 = 262_144;
const ROWS_MAX: i64 = PacketBatches::ROWS_MAX as i64;
/// Maximum time of a batch in seconds.
const BATCH_TIME_MAX: f64 = 3600.0;

/// Opens a capture on an interface, which receives packets from here on.
///
/// Args:
///     interface: Name of the interface, or "any" for all.
///     filter: Filter in libpcap's language, see pcap-filter(7).
///     path: Kernel path: "auto", "recv", "v2", "v3", "tap", "xdp", "xdp-zc" or "zerocopy". With
///         "xdp" the host does not receive the captured packets.
///     columns: Columns of the batches: "basic", "headers", "standard", "all" or names of the table
///         packets, as a text with commas or a list.
///     frames: Add the first bytes of each packet as the column frame, up to this number.
///     snaplen: Maximum captured bytes of a packet.
///     count: End after this many packets.
///     duration: End after this many seconds.
///     direction: "in", "out" or "both".
///     promiscuous: Set the interface to promiscuous mode.
///     ring_bytes: Size of the ring for each queue.
///     batch_rows: Maximum rows of a batch.
///     batch_time: Seconds after its first packet at which a batch is returned.
///
/// Returns:
///     A Session.
#[expect(clippy::too_many_arguments, reason = "each is an argument of Python with a name")]
#[pyfunction]
#[pyo3(signature = (
    interface, *, filter = None, path = "auto", columns = None, frames = None, snaplen = SNAPLEN_MAX,
    count = None, duration = None, direction = "both", promiscuous = true, ring_bytes = None,
    batch_rows = ROWS_MAX, batch_time = 1.0,
), text_signature = "(interface, *, filter=None, path='auto', columns='standard', frames=None, \
    snaplen=262144, count=None, duration=None, direction='both', promiscuous=True, ring_bytes=None, \
    batch_rows=65536, batch_time=1.0)")]
pub(crate) fn capture(
    py: Python<'_>,
    interface: &str,
    filter: Option<&str>,
    path: &str,
    columns: Option<Names>,
    frames: Option<i64>,
    snaplen: i64,
    count: Option<i64>,
    duration: Option<f64>,
    direction: &str,
    promiscuous: bool,
    ring_bytes: Option<i64>,
    batch_rows: i64,
    batch_time: f64,
) -> PyResult<Session> {
    let limits = limits(columns, frames, batch_rows, batch_time, count, duration)?;
    let builder = builder(interface, filter, snaplen)?
        .path(path_of(path)?)
        .directions(directions(direction)?)
        .promiscuous(promiscuous);
    let builder = match ring_bytes {
        // The session checks the range.
        Some(bytes) => builder.ring(usize::try_from(bytes).unwrap_or(0)),
        None => builder,
    };
    let session = py.detach(|| builder.open()).map_err(Failure::from)?;
    Ok(Session::new(session, &limits))
}

/// Opens a pcap or pcapng file.
///
/// Args:
///     file: Path of the file, or "-" for standard input.
///     filter, columns, frames, snaplen, count, batch_rows, batch_time: As for capture.
///
/// Returns:
///     A Session.
#[expect(clippy::too_many_arguments, reason = "each is an argument of Python with a name")]
#[pyfunction]
#[pyo3(signature = (
    file, *, filter = None, columns = None, frames = None, snaplen = SNAPLEN_MAX, count = None,
    batch_rows = ROWS_MAX, batch_time = 1.0,
), text_signature = "(file, *, filter=None, columns='standard', frames=None, snaplen=262144, \
    count=None, batch_rows=65536, batch_time=1.0)")]
pub(crate) fn read(
    py: Python<'_>,
    file: PathBuf,
    filter: Option<&str>,
    columns: Option<Names>,
    frames: Option<i64>,
    snaplen: i64,
    count: Option<i64>,
    batch_rows: i64,
    batch_time: f64,
) -> PyResult<Session> {
    let limits = limits(columns, frames, batch_rows, batch_time, count, None)?;
    let file = file.into_os_string().into_string();
    let file = file.map_err(|file| usage(&file.to_string_lossy(), "its name is not UTF-8"))?;
    let builder = builder(&file, filter, snaplen)?;
    if file == "-" {
        wait_for_input(py)?;
    }
    let session = py.detach(|| builder.open_file()).map_err(Failure::from)?;
    Ok(Session::new(session, &limits))
}

/// Waits until standard input has its first bytes, and checks for signals meanwhile.
fn wait_for_input(py: Python<'_>) -> PyResult<()> {
    let stdin = std::io::stdin();
    loop {
        let [input] = py.detach(|| wait::readable([Some(stdin.as_fd())], TICK)).map_err(Failure::from)?;
        if input.readable || input.failed {
            return Ok(());
        }
        py.check_signals()?;
    }
}

/// Names of columns: a text, or several.
pub(crate) struct Names(String);

impl<'py> FromPyObject<'_, 'py> for Names {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(text) = object.cast::<PyString>() {
            return Ok(Self(text.to_cow()?.into_owned()));
        }
        Ok(Self(object.extract::<Vec<String>>()?.join(",")))
    }
}

fn usage(subject: &str, reason: &str) -> Failure {
    Failure::Usage(format!("{subject}: {reason}"))
}

/// Returns the number if it is 1 to `most`.
fn within(name: &str, number: i64, most: i64) -> Result<i64, Failure> {
    if (1..=most).contains(&number) {
        return Ok(number);
    }
    let range = if most == i64::MAX { "give 1 or more".to_owned() } else { format!("give 1 to {most}") };
    Err(usage(&format!("{name}={number}"), &range))
}

fn seconds(name: &str, seconds: f64, most: f64) -> Result<Duration, Failure> {
    let duration = Duration::try_from_secs_f64(seconds).ok().filter(|_| seconds > 0.0 && seconds <= most);
    duration.ok_or_else(|| {
        usage(&format!("{name}={seconds}"), &format!("give more than 0 and at most {most} seconds"))
    })
}

fn builder(source: &str, filter: Option<&str>, snaplen: i64) -> Result<Builder, Failure> {
    let snaplen = within("snaplen", snaplen, SNAPLEN_MAX)?;
    let builder = strait_capture::Session::builder(source).snaplen(snaplen as u32);
    Ok(match filter {
        Some(filter) => builder.filter(filter),
        None => builder,
    })
}

fn limits(
    columns: Option<Names>,
    frames: Option<i64>,
    batch_rows: i64,
    batch_time: f64,
    count: Option<i64>,
    duration: Option<f64>,
) -> Result<Limits, Failure> {
    // A year, which an Instant can have.
    const DURATION_MAX: f64 = 31_536_000.0;
    let frames = frames.map(|frames| within("frames", frames, SNAPLEN_MAX)).transpose()?;
    let count = count.map(|count| within("count", count, i64::MAX)).transpose()?;
    Ok(Limits {
        columns: columns_of(columns, frames.is_some())?,
        frame_bytes: frames.unwrap_or_default() as u32,
        batch_rows: within("batch_rows", batch_rows, ROWS_MAX)? as usize,
        batch_time: seconds("batch_time", batch_time, BATCH_TIME_MAX)?,
        count: count.map(|count| count as u64),
        duration: duration.map(|duration| seconds("duration", duration, DURATION_MAX)).transpose()?,
    })
}

fn columns_of(names: Option<Names>, has_frames: bool) -> Result<Columns, Failure> {
    let columns = match names {
        None => Columns::default(),
        Some(Names(names)) => {
            let words: Vec<&str> = names.split(',').map(str::trim).filter(|word| *word != "frame").collect();
            if words.len() < names.split(',').count() && !has_frames {
                return Err(usage("frame", "frames=N adds this column, with N bytes of each packet"));
            }
            let unknown = words.iter().find(|word| Columns::parse(word).is_err());
            if let Some(name) = unknown {
                return Err(usage(name, no_column(name)));
            }
            Columns::parse(&words.join(",")).map_err(Failure::Usage)?
        }
    };
    Ok(if has_frames { columns.with_frame() } else { columns })
}

fn no_column(name: &str) -> &'static str {
    if PACKETS.columns.iter().any(|column| column.name == name) {
        return "only strait capture --owner has this column";
    }
    "no such column; give basic, headers, standard, all or names of the table packets"
}

fn path_of(name: &str) -> Result<Path, Failure> {
    let path = Path::ALL.iter().find(|path| path.name() == name);
    path.copied().ok_or_else(|| {
        let names: Vec<&str> = Path::ALL.iter().map(|path| path.name()).collect();
        usage(&format!("path={name:?}"), &format!("give one of {}", names.join(", ")))
    })
}

fn directions(name: &str) -> Result<Directions, Failure> {
    match name {
        "in" => Ok(Directions::In),
        "out" => Ok(Directions::Out),
        "both" => Ok(Directions::Both),
        _ => Err(usage(&format!("direction={name:?}"), "give in, out or both")),
    }
}
