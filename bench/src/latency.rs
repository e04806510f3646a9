//! Delay from the generator's stamp to the program on a quiet line, on which TPACKET_V3's timer
//! matters.

use crate::capture::SIZE;
use crate::claim::{Bound, Claim};
use crate::contestants::{self, PATHS, STOCK_IMMEDIATE, WAITS};
use crate::error::Result;
use crate::measure;
use crate::results::Results;
use crate::run::{Contest, Context};
use crate::table::{self, Column};

const ABOUT: &str = "Delay of 60-byte frames at 1,000 packets/s from the time that the generator stamped to the time \
    that the program reads the frame. Generator on CPU 0, receiver on CPU 1; CPU seconds per second of the run.";

/// Rate in packets/s.
const RATE: &str = "1000";

const COLUMNS: [Column; 5] = [
    Column { title: "p50 us", figure: "p50_us", scale: 1.0, decimals: 1, ratio: false },
    Column { title: "p99 us", figure: "p99_us", scale: 1.0, decimals: 1, ratio: true },
    Column { title: "max us", figure: "max_us", scale: 1.0, decimals: 0, ratio: false },
    Column { title: "CPU us/packet", figure: "cpu_s_per_million", scale: 1.0, decimals: 1, ratio: true },
    Column { title: "loss %", figure: "loss_percent", scale: 1.0, decimals: 2, ratio: false },
];

/// Measures, prints the table and returns the results with their claims.
pub(crate) fn run(context: &Context) -> Result<Results> {
    let mut results = context.results("latency", ABOUT);
    let (wire, tools) = (measure::plain_wire()?, &context.tools);
    let generator = contestants::generate(tools, "sendmmsg", RATE, SIZE, context.seconds);
    let mut receivers = vec![contestants::stock_delays(tools, true), contestants::stock_delays(tools, false)];
    for path in PATHS {
        receivers.extend(WAITS.map(|wait| contestants::strait_delays(tools, path, wait)));
    }
    let contests: Vec<_> = receivers
        .iter()
        .map(|receiver| {
            let measure = || measure::point(tools, &wire, receiver, &generator, context.seconds);
            Contest::new(receiver.name.clone(), measure)
        })
        .collect();
    context.run(&mut results, &contests, context.rounds)?;
    results.claims = PATHS.iter().map(|path| claim(&results, path)).collect();
    print!("{}", table::of_series(&results, "", STOCK_IMMEDIATE, &COLUMNS));
    Ok(results)
}

fn claim(results: &Results, path: &str) -> Claim {
    let text = format!("Balanced on {path}, 1,000 packets/s: p99 delay, to stock immediate mode");
    let balanced = format!("{path} balanced");
    Claim::of_ratio(text, results, "p99_us", (&balanced, STOCK_IMMEDIATE), Bound::AtMost(1.2))
}
