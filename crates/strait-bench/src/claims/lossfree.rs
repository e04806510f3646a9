//! Highest rate of live frames that a receiver takes without loss ([`crate::search`]).

use super::capture::SIZE;
use super::context::{Context, Reporter, Subject, of_ratio, point};
use super::measure::{self, napi_wire};
use super::programs::{self, Receiver, STOCK};
use crate::claim::Bound;
use crate::error::{Error, Result};
use crate::results::{Figures, Results, figures};
use crate::search::{Attempt, Limits, search_lossfree};
use crate::wire::Wire;

const ABOUT: &str = "Highest rate of XDP live frames of 60 bytes that a receiver takes without a loss, found by \
    bisection to 1.5 %, each rate tried twice at most. Generator on CPU 0, receiver on CPU 1.";

const LIMITS: Limits = Limits { rate_pps_min: 50_000.0, resolution: 0.015 };
/// A rate is not tested if the generator reaches less than this share of it.
const RATE_SHARE_MIN: f64 = 0.9;
/// Fewer rounds than elsewhere, because a search consists of many points.
const ROUNDS_MAX: u32 = 3;

/// Measures and claims.
pub(super) fn run(context: &Context<'_>, reporter: &mut Reporter<'_>) -> Result<()> {
    let subject = Subject { benchmark: "claims lossfree", about: ABOUT, axis: "load", labels: &["live"] };
    let wire = napi_wire()?;
    let ours = ["v3", "xdp"].map(|path| programs::strait(context, path, "balanced"));
    let receivers = [programs::stock(context, false)].into_iter().chain(ours);
    let points = receivers.map(|receiver| {
        let wire = &wire;
        point(receiver.name.clone(), 0.0, move || measure(context, wire, &receiver))
    });
    let claims = |results: &Results| {
        let keys = (("xdp balanced", 0.0), (STOCK, 0.0));
        let text = "xdp, live: loss-free rate, to stock libpcap";
        vec![of_ratio(text, results, "lossfree_pps", keys, Bound::AtLeast(2.8))]
    };
    context.run(&subject, context.rounds.min(ROUNDS_MAX), points.collect(), claims, reporter)
}

fn measure(context: &Context<'_>, wire: &Wire, receiver: &Receiver) -> Result<Figures> {
    let found = search_lossfree(&LIMITS, |rate| attempt(context, wire, receiver, rate))?;
    Ok(figures([("lossfree_pps", found.lossfree_pps), ("tries", found.tries.into())]))
}

/// Tries a rate, or the full rate.
fn attempt(context: &Context<'_>, wire: &Wire, receiver: &Receiver, rate: Option<f64>) -> Result<Attempt> {
    let text = rate.map_or("max".to_owned(), |rate| format!("{rate:.0}"));
    let generator = programs::generate(context, "live", &text, SIZE, context.seconds);
    let figures = measure::point(&context.launcher, wire, receiver, &generator, context.seconds)?;
    let offered_pps = figures["offered_pps"];
    if rate.is_some_and(|rate| offered_pps < rate * RATE_SHARE_MIN) {
        return Err(Error::Invalid(format!("the generator reached {offered_pps:.0} of {text} packets/s")));
    }
    Ok(Attempt { offered_pps, loss: figures["loss_percent"] / 100.0 })
}
