//! Rate of `strait generate`, compared with sendmmsg in C.

use super::capture::{self, SIZE};
use super::context::{Context, Reporter, Subject, of_figure, point};
use super::measure::{self, napi_wire, plain_wire};
use super::programs;
use crate::claim::{Bound, Claim};
use crate::error::Result;
use crate::results::{Figures, Results};

const ABOUT: &str = "60-byte frames as fast as one core sends them into a veth pair. The generator in C sends the same \
    frame again and again, or numbers and stamps each one as strait does. No program captures, except in the series with AF_XDP: \
    the other end's receive path runs on the sender's core, and bounds the rate of live frames.";

/// Series of live frames that the other end receives by AF_XDP, without socket buffers.
const INTO_XDP: &str = "strait live, into AF_XDP";

/// Frames per system call of the generator in C.
const BATCHES: [u32; 2] = [64, 128];

/// Place on the axis: the size of [`SIZE`].
const BYTES: f64 = 64.0;

/// Measures and claims.
pub(super) fn run(context: &Context<'_>, reporter: &mut Reporter<'_>) -> Result<()> {
    let subject =
        Subject { benchmark: "claims generate", about: ABOUT, axis: "frame size, bytes", labels: &[] };
    let (plain, napi) = (plain_wire()?, napi_wire()?);
    let (launcher, seconds) = (&context.launcher, context.seconds);
    let in_c = |batch, numbered| programs::send_in_c(context, batch, numbered, seconds);
    let mut generators: Vec<_> = BATCHES
        .iter()
        .flat_map(|&batch| [false, true].map(|numbered| (in_c(batch, numbered), &plain)))
        .collect();
    for (path, wire) in [("sendmmsg", &plain), ("ring", &plain), ("live", &napi)] {
        generators.push((programs::generate(context, path, "max", SIZE, seconds), wire));
    }
    let mut points = Vec::new();
    for (generator, wire) in &generators {
        let alone = || measure::generator_alone(launcher, wire, generator, seconds);
        points.push(point(generator.name.clone(), BYTES, alone));
    }
    let receiver = programs::strait(context, "xdp", "balanced");
    let into_xdp = capture::at_full_rate(context, ("live", BYTES), &napi, receiver).measure;
    points.push(point(INTO_XDP, BYTES, move || into_xdp().map(|(figures, _)| of_the_generator(figures))));
    let in_c = [false, true].map(|numbered| BATCHES.map(|batch| in_c(batch, numbered).name));
    context.run(&subject, context.rounds, points, |results| claims(results, &in_c), reporter)
}

/// Replaces the receiver's cost by the generator's.
fn of_the_generator(mut figures: Figures) -> Figures {
    let per_million = figures["generator_cpu_s"] * 1e6 / figures["offered_packets"];
    figures.insert("cpu_s_per_million".into(), per_million);
    figures
}

/// Returns the claims. `in_c` are the names of the generators in C: those with equal frames, and
/// those with numbered ones.
fn claims(results: &Results, in_c: &[[String; 2]; 2]) -> Vec<Claim> {
    let figure = "offered_pps";
    let [equal, numbered] = in_c;
    let claim = |what: &str, peers: &[String; 2]| {
        let mut keys = vec![(("strait sendmmsg", BYTES), figure)];
        keys.extend(peers.iter().map(|name| ((name.as_str(), BYTES), figure)));
        let ratios =
            results.paired(&keys, |rates| Some(rates[0] / rates[1..].iter().copied().fold(0.0, f64::max)));
        let text = format!("generate: packets/s, to the faster of sendmmsg in C, {what}");
        Claim::of_values(text, &ratios, "x", Bound::AtLeast(1.0))
    };
    vec![
        claim("frames numbered and stamped too", numbered),
        claim("equal frames", equal),
        of_figure(
            "generate --path live: million packets/s",
            results,
            ((INTO_XDP, BYTES), figure),
            (1e-6, "M/s"),
            Bound::AtLeast(3.0),
        ),
    ]
}
