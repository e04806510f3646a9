//! Bounds of the tap's tax, compared with other captures in the same round.

use super::place::number;
use crate::claim::{Bound, Claim};
use crate::results::Results;

const TAP: &str = "tap";
/// Tap that finds the owner of each packet.
const OWNERS: &str = "tap owners";
const TAX: &str = "tax_us";
const THROUGHPUT: &str = "tcp_bytes_per_s";

/// Figure, its place for the tap, the other capture with its place, and the bound of the ratio.
type Ratio = (&'static str, &'static str, (&'static str, &'static str), Bound);

/// Places where the tap with owners is compared with the tap.
const OF_OWNERS: [&str; 3] = ["60 B", "1514 B", "port"];

const RATIOS: [Ratio; 11] = [
    (TAX, "60 B", ("v3", "60 B"), Bound::AtMost(0.4)),
    (TAX, "1514 B", ("v3", "1514 B"), Bound::AtMost(0.4)),
    (TAX, "60 B", ("libpcap", "60 B"), Bound::AtMost(0.3)),
    (TAX, "1514 B", ("libpcap", "1514 B"), Bound::AtMost(0.3)),
    (TAX, "60 B, rejected", ("v3", "60 B, rejected"), Bound::AtMost(0.5)),
    (TAX, "1514 B, rejected", ("v3", "1514 B, rejected"), Bound::AtMost(0.5)),
    (TAX, "port", ("tcpdump", "bridge"), Bound::AtMost(0.4)),
    (THROUGHPUT, "TCP, 96 B", ("v3", "TCP, 96 B"), Bound::AtLeast(1.0)),
    (THROUGHPUT, "TCP", ("v3", "TCP"), Bound::AtLeast(1.0)),
    (THROUGHPUT, "TCP, 96 B", ("recv", "TCP, 96 B"), Bound::AtLeast(1.5)),
    (THROUGHPUT, "TCP", ("recv", "TCP"), Bound::AtLeast(1.5)),
];

/// Returns the claims on what was measured.
pub(super) fn of(results: &Results) -> Vec<Claim> {
    let ratio = |&(figure, place, (other, other_place), bound): &Ratio| {
        let (tap, other_key) = ((TAP, number(place)), (other, number(other_place)));
        let what = if figure == TAX { "tax" } else { "throughput of TCP" };
        let at =
            if place == other_place { place.to_owned() } else { format!("{place}, {other} {other_place}") };
        let text = format!("tap, {at}: {what}, to {other}");
        Claim::of_values(text, &results.ratios(figure, tap, other_key), "x", bound)
    };
    let loss = |place: &str| {
        let values = results.paired(&[((TAP, number(place)), "loss_percent")], |loss| Some(loss[0]));
        Claim::of_values(format!("tap, {place}: loss"), &values, "%", Bound::AtMost(0.0))
    };
    let owners = |place: &str| {
        let values = results.ratios(TAX, (OWNERS, number(place)), (TAP, number(place)));
        Claim::of_values(format!("tap with owners, {place}: tax, to tap"), &values, "x", Bound::AtMost(1.1))
    };
    let claims = RATIOS.iter().map(ratio).chain(["60 B", "1514 B", "port"].map(loss));
    let claims = claims.chain(OF_OWNERS.map(owners));
    claims.filter(|claim| claim.measured.is_some()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::Verdict;
    use crate::results::figures;

    #[test]
    fn claims_compare_the_same_round_and_leave_out_what_was_not_measured() {
        let mut results = Results { rounds: 1, ..Results::default() };
        for (contestant, place, tax) in
            [("tap", "60 B", 0.1), ("v3", "60 B", 0.5), ("tap", "port", 0.3), ("tcpdump", "bridge", 0.5)]
        {
            let outcome = (figures([(TAX, tax), ("loss_percent", 0.0)]), String::new());
            results.record(contestant, number(place), Ok(outcome));
        }
        let claims = of(&results);
        let verdicts: Vec<_> = claims.iter().map(|claim| (claim.text.as_str(), claim.verdict)).collect();
        assert_eq!(
            verdicts,
            [
                ("tap, 60 B: tax, to v3", Verdict::Holds),
                ("tap, port, tcpdump bridge: tax, to tcpdump", Verdict::Short),
                ("tap, 60 B: loss", Verdict::Holds),
                ("tap, port: loss", Verdict::Holds),
            ]
        );
    }
}
