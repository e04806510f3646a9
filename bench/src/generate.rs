//! Rate of `strait generate`, compared with sendmmsg in C.

use crate::capture::{self, SIZE};
use crate::claim::{Bound, Claim};
use crate::contestants;
use crate::error::Result;
use crate::measure;
use crate::results::{Figures, Results};
use crate::run::{Contest, Context};
use crate::table::{self, Column};

const ABOUT: &str = "60-byte frames as fast as one core sends them into a veth pair. The generator in C sends the same \
    frame again and again, or numbers and stamps each one as strait does. Nobody captures, but where it says AF_XDP: \
    the other end's receive path runs on the sender's core, and bounds the rate of live frames.";

/// Series of live frames that the other end takes by XDP, without socket buffers.
const INTO_XDP: &str = "strait live, into AF_XDP";

/// Frames per system call of the generator in C.
const BATCHES: [u32; 2] = [64, 128];

const COLUMNS: [Column; 2] = [
    Column { title: "sent M/s", figure: "offered_pps", scale: 1e-6, decimals: 3, ratio: true },
    Column { title: "CPU s/million", figure: "cpu_s_per_million", scale: 1.0, decimals: 4, ratio: false },
];

/// Measures, prints the table and returns the results with their claims.
pub(crate) fn run(context: &Context) -> Result<Results> {
    let mut results = context.results("generate", ABOUT);
    let (plain, napi) = (measure::plain_wire()?, measure::napi_wire()?);
    let (tools, seconds) = (&context.tools, context.seconds);
    let mut generators: Vec<_> = BATCHES
        .iter()
        .flat_map(|&batch| {
            [false, true].map(|numbered| contestants::send_in_c(tools, batch, numbered, seconds))
        })
        .map(|generator| (generator, &plain))
        .collect();
    for (path, wire) in [("sendmmsg", &plain), ("ring", &plain), ("live", &napi)] {
        generators.push((contestants::generate(tools, path, "max", SIZE, seconds), wire));
    }
    let mut contests: Vec<_> = generators
        .iter()
        .map(|(generator, wire)| {
            let measure = || measure::generator_alone(tools, wire, generator, seconds);
            Contest::new(generator.name.clone(), measure)
        })
        .collect();
    let receiver = contestants::strait(tools, "xdp", "balanced");
    let into_xdp = capture::contest(context, "live", &napi, receiver);
    contests.push(Contest::new(INTO_XDP, move || (into_xdp.measure)().map(of_the_generator)));
    context.run(&mut results, &contests, context.rounds)?;
    let in_c = [false, true]
        .map(|numbered| BATCHES.map(|batch| contestants::send_in_c(tools, batch, numbered, seconds).name));
    results.claims = claims(&results, &in_c);
    print!("{}", table::of_series(&results, "", &in_c[0][0], &COLUMNS));
    Ok(results)
}

/// Replaces the receiver's cost by the generator's.
fn of_the_generator(mut figures: Figures) -> Figures {
    let per_million = figures["generator_cpu_s"] * 1e6 / figures["offered_packets"];
    figures.insert("cpu_s_per_million", per_million);
    figures
}

/// Returns the claims. `in_c` are the names of the generators in C: those with equal frames, and
/// those with numbered ones.
fn claims(results: &Results, in_c: &[[String; 2]; 2]) -> Vec<Claim> {
    let figure = "offered_pps";
    let [equal, numbered] = in_c;
    let beside = |what: &str, peers: &[String; 2]| {
        let mut keys = vec![("strait sendmmsg", figure)];
        keys.extend(peers.iter().map(|name| (name.as_str(), figure)));
        let ratios =
            results.paired(&keys, |rates| Some(rates[0] / rates[1..].iter().copied().fold(0.0, f64::max)));
        let text = format!("generate: packets/s, to the faster of sendmmsg in C, {what}");
        Claim::of_values(text, &ratios, "x", Bound::AtLeast(1.0))
    };
    vec![
        beside("frames numbered and stamped too", numbered),
        beside("equal frames", equal),
        Claim::of_figure(
            "generate --path live: million packets/s",
            results,
            (INTO_XDP, figure),
            (1e-6, "M/s"),
            Bound::AtLeast(3.0),
        ),
    ]
}
