//! Writing packets to disk, compared with tcpdump: 200,000 packets/s of 1,000 bytes.

use std::fs;
use std::path::{Path, PathBuf};

use lab::Wire;

use crate::claim::{Bound, Claim};
use crate::contestants::{self, Receiver};
use crate::error::{Error, Result};
use crate::measure;
use crate::results::{Figures, Results};
use crate::run::{Contest, Context};
use crate::table::{self, Column};

const ABOUT: &str = "200,000 packets/s of 1,000 bytes by sendmmsg, captured to a file with the programs' own default \
    snaplen. Generator on CPU 0, receiver on CPU 1; CPU seconds are those of the receiver's whole life, so that the \
    file's last bytes count too.";

/// Rate in packets/s.
const RATE: &str = "200000";
/// Frame size: 1,000 bytes and the frame check sequence.
const SIZE: &str = "1004";

const COLUMNS: [Column; 4] = [
    Column { title: "offered k/s", figure: "offered_pps", scale: 1e-3, decimals: 1, ratio: false },
    Column { title: "loss %", figure: "loss_percent", scale: 1.0, decimals: 3, ratio: false },
    Column {
        title: "CPU s/million",
        figure: "cpu_total_s_per_million",
        scale: 1.0,
        decimals: 3,
        ratio: true,
    },
    Column { title: "file MB", figure: "file_bytes", scale: 1e-6, decimals: 1, ratio: false },
];

/// Measures, prints the table and returns the results with their claims.
pub(crate) fn run(context: &Context) -> Result<Results> {
    let mut results = context.results("disk", ABOUT);
    let wire = measure::plain_wire()?;
    let directory = Scratch::make(&context.disk)?;
    let file = directory.0.join("capture");
    let (tools, path) = (&context.tools, file.to_string_lossy());
    let receivers = [
        contestants::tcpdump(&path),
        contestants::strait_file(tools, "pcapng", &path),
        contestants::strait_file(tools, "pcap", &path),
    ];
    let contests: Vec<_> = receivers
        .iter()
        .map(|receiver| Contest::new(receiver.name.clone(), || point(context, &wire, receiver, &file)))
        .collect();
    context.run(&mut results, &contests, context.rounds)?;
    results.claims = claims(&results);
    print!("{}", table::of_series(&results, "", "tcpdump", &COLUMNS));
    Ok(results)
}

fn point(context: &Context, wire: &Wire, receiver: &Receiver, file: &Path) -> Result<Figures> {
    let generator = contestants::generate(&context.tools, "sendmmsg", RATE, SIZE, context.seconds);
    let measured = measure::point(&context.tools, wire, receiver, &generator, context.seconds);
    let written = fs::metadata(file).map(|file| file.len());
    // Remove the file before the next point: its pages then need not reach the disk.
    let _ = fs::remove_file(file);
    let mut figures = measured?;
    let written = written.map_err(|source| Error::file(format!("look at {}", file.display()), source))?;
    figures.insert("file_bytes", written as f64);
    Ok(figures)
}

fn claims(results: &Results) -> Vec<Claim> {
    let lost = results.paired(&[("strait pcapng", "lost_packets")], |lost| Some(lost[0]));
    vec![
        Claim::of_values("pcapng to disk: packets lost", &lost, "packets", Bound::AtMost(0.0)).worst(),
        Claim::of_ratio(
            "pcapng to disk: CPU, to tcpdump -w",
            results,
            "cpu_total_s_per_million",
            ("strait pcapng", "tcpdump"),
            Bound::AtMost(1.0),
        ),
    ]
}

/// Directory that is removed when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn make(parent: &Path) -> Result<Self> {
        let path = parent.join(format!("bench-disk-{}", std::process::id()));
        fs::create_dir_all(&path)
            .map_err(|source| Error::file(format!("make {}", path.display()), source))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A failure leaves it in the target directory.
        let _ = fs::remove_dir_all(&self.0);
    }
}
