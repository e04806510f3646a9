//! Writing packets to disk, compared with tcpdump: 200,000 packets/s of 1,000 bytes.

use std::fs;
use std::path::Path;

use super::context::{Context, Reporter, Subject, of_ratio, point};
use super::measure::{self, plain_wire};
use super::peers::Scratch;
use super::programs::{self, Receiver};
use crate::claim::{Bound, Claim};
use crate::error::{Error, Result};
use crate::results::{Figures, Results};
use crate::wire::Wire;

const ABOUT: &str = "200,000 packets/s of 1,000 bytes by sendmmsg, captured to a file with the programs' own default \
    snaplen. Generator on CPU 0, receiver on CPU 1; CPU seconds are those of the receiver's whole life, so that the \
    file's last bytes count too.";

/// Rate in packets/s.
const RATE: f64 = 200_000.0;
/// Frame size: 1,000 bytes and the frame check sequence.
const SIZE: &str = "1004";

/// Measures and claims.
pub(super) fn run(context: &Context<'_>, reporter: &mut Reporter<'_>) -> Result<()> {
    let subject = Subject { benchmark: "claims disk", about: ABOUT, axis: "rate, packets/s", labels: &[] };
    let wire = plain_wire()?;
    let directory = Scratch::make(&context.disk, "strait-disk")?;
    let file = directory.0.join("capture");
    let path = file.to_string_lossy();
    let receivers = [
        programs::tcpdump(&path),
        programs::strait_file(context, "pcapng", &path),
        programs::strait_file(context, "pcap", &path),
    ];
    let points = receivers
        .iter()
        .map(|receiver| point(receiver.name.clone(), RATE, || measure(context, &wire, receiver, &file)));
    context.run(&subject, context.rounds, points.collect(), claims, reporter)
}

fn measure(context: &Context<'_>, wire: &Wire, receiver: &Receiver, file: &Path) -> Result<Figures> {
    let rate = RATE.to_string();
    let generator = programs::generate(context, "sendmmsg", &rate, SIZE, context.seconds);
    let measured = measure::point(&context.launcher, wire, receiver, &generator, context.seconds);
    let written = fs::metadata(file).map(|file| file.len());
    // Remove the file before the next point: its pages then need not reach the disk.
    let _ = fs::remove_file(file);
    let mut figures = measured?;
    let written = written.map_err(|error| Error::file(format!("look at {}", file.display()), error))?;
    figures.insert("file_bytes".into(), written as f64);
    Ok(figures)
}

fn claims(results: &Results) -> Vec<Claim> {
    let (strait, tcpdump) = (("strait pcapng", RATE), ("tcpdump", RATE));
    let lost = results.paired(&[(strait, "lost_packets")], |lost| Some(lost[0]));
    vec![
        Claim::of_values("pcapng to disk: packets lost", &lost, "packets", Bound::AtMost(0.0)).worst(),
        of_ratio(
            "pcapng to disk: CPU, to tcpdump -w",
            results,
            "cpu_total_s_per_million",
            (strait, tcpdump),
            Bound::AtMost(1.0),
        ),
    ]
}
