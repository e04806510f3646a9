//! Choice of a server in a pool. Without I/O and without a clock: numbers in, an index out.

use crate::config::edge::Balance;

/// Server that can be chosen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    /// Position in its pool.
    pub(crate) index: usize,
    /// Share of the requests, at least 1.
    pub(crate) weight: u32,
    /// Requests in progress.
    pub(crate) load: u64,
    /// Hash of the server's address.
    pub(crate) id: u64,
}

/// Chooses one of the candidates and returns its index; `None` if there are none. `turn` differs
/// for each choice and grows by 1; `hash` is that of the URI.
pub(crate) fn choose(balance: Balance, turn: u64, hash: u64, candidates: &[Candidate]) -> Option<usize> {
    let chosen = match balance {
        Balance::RoundRobin => in_turn(turn, candidates),
        Balance::LeastConnections => {
            let least = candidates.iter().min_by(|one, other| one.compare_load(other))?;
            let is_least = |it: &&Candidate| it.compare_load(least).is_eq();
            let least: Vec<_> = candidates.iter().filter(is_least).copied().collect();
            return Some(in_turn(turn, &least)?.index);
        }
        Balance::PowerOfTwo => {
            let one = at(mixed(turn), candidates)?;
            let other = at(mixed(!turn), candidates)?;
            Some(if other.compare_load(one).is_lt() { other } else { one })
        }
        Balance::Uri => candidates.iter().max_by(|one, other| one.score(hash).total_cmp(&other.score(hash))),
    };
    chosen.map(|candidate| candidate.index)
}

impl Candidate {
    /// Compares the loads in proportion to the weights.
    fn compare_load(&self, other: &Self) -> std::cmp::Ordering {
        let scaled = |load: u64, weight: u32| u128::from(load) * u128::from(weight);
        scaled(self.load, other.weight).cmp(&scaled(other.load, self.weight))
    }

    /// Returns the score of the server for a URI in weighted rendezvous hashing: the highest score
    /// wins. A server that leaves or joins moves only its own URIs.
    fn score(&self, hash: u64) -> f64 {
        // 53 bits, as many as a f64 has, in the open interval from 0 to 1.
        let unit = ((mixed(hash ^ mixed(self.id)) >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
        -f64::from(self.weight) / unit.ln()
    }
}

/// Returns the candidate whose turn it is. Of as many consecutive turns as the sum of the weights,
/// each candidate gets as many as its weight, spread over them.
fn in_turn(turn: u64, candidates: &[Candidate]) -> Option<&Candidate> {
    let sum = sum(candidates);
    // Weights of SRV records with percentages have sums above 32 bits.
    let product = u128::from(turn.checked_rem(sum)?) * u128::from(stride(sum));
    by_weight((product % u128::from(sum)) as u64, candidates)
}

/// Returns a candidate by a random number, in proportion to the weights.
fn at(random: u64, candidates: &[Candidate]) -> Option<&Candidate> {
    let point = (u128::from(random) * u128::from(sum(candidates))) >> 64;
    by_weight(point as u64, candidates)
}

fn sum(candidates: &[Candidate]) -> u64 {
    candidates.iter().map(|candidate| u64::from(candidate.weight)).sum()
}

/// Returns the candidate at a position below the sum of the weights.
fn by_weight(mut position: u64, candidates: &[Candidate]) -> Option<&Candidate> {
    candidates.iter().find(|candidate| {
        let weight = u64::from(candidate.weight);
        let is_here = position < weight;
        position = position.saturating_sub(weight);
        is_here
    })
}

/// Returns a step that visits all positions below `sum` and whose multiples are far apart: the
/// first one from the golden section on without a common divisor.
fn stride(sum: u64) -> u64 {
    let golden = (sum as f64 * 0.618_033_988_749_895) as u64;
    (golden.max(1)..=sum.saturating_add(1)).find(|step| greatest_divisor(*step, sum) == 1).unwrap_or(1)
}

fn greatest_divisor(one: u64, other: u64) -> u64 {
    if other == 0 { one } else { greatest_divisor(other, one % other) }
}

/// Mixes the bits of a number (the finalizer of SplitMix64), so that successive numbers become
/// random ones.
fn mixed(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHOICES: u64 = 100_000;
    const ALL: [Balance; 4] =
        [Balance::RoundRobin, Balance::LeastConnections, Balance::PowerOfTwo, Balance::Uri];

    fn candidates(weights: &[u32]) -> Vec<Candidate> {
        let of = |(index, weight): (usize, &u32)| {
            let id = strait_store::hash_of(format!("10.0.0.{index}:80").as_bytes());
            Candidate { index, weight: *weight, load: 0, id }
        };
        weights.iter().enumerate().map(of).collect()
    }

    fn uri(number: u64) -> u64 {
        strait_store::hash_of(format!("http://www.example.org/item/{number}").as_bytes())
    }

    /// Asserts that each candidate has its share of the choices to 2 %.
    fn assert_fair(counts: &[u64], weights: &[u32], what: Balance) {
        let sum: u32 = weights.iter().sum();
        for (count, weight) in counts.iter().zip(weights) {
            let share = CHOICES as f64 * f64::from(*weight) / f64::from(sum);
            let error = (*count as f64 - share).abs() / share;
            assert!(error < 0.02, "{what:?} {weights:?}: {counts:?}");
        }
    }

    #[test]
    fn every_balance_is_fair_by_weight() {
        for weights in [&[1][..], &[1, 1], &[1, 1, 1], &[1, 1, 1, 1, 1], &[3, 1], &[5, 3, 2]] {
            for balance in ALL {
                let all = candidates(weights);
                let mut counts = vec![0; weights.len()];
                for turn in 0..CHOICES {
                    counts[choose(balance, turn, uri(turn), &all).unwrap()] += 1;
                }
                assert_fair(&counts, weights, balance);
            }
        }
    }

    #[test]
    fn balance_by_load_is_fair_while_requests_are_in_progress() {
        // Requests end in another order than they began, with durations that differ.
        for balance in [Balance::LeastConnections, Balance::PowerOfTwo] {
            let mut all = candidates(&[1, 1, 1, 1]);
            let (mut counts, mut ends) = ([0; 4], std::collections::BinaryHeap::new());
            for turn in 0..CHOICES {
                while let Some(&std::cmp::Reverse((end, index))) = ends.peek() {
                    if end > turn {
                        break;
                    }
                    ends.pop();
                    let ended: &mut Candidate = &mut all[index];
                    ended.load -= 1;
                }
                let index = choose(balance, turn, 0, &all).unwrap();
                counts[index] += 1;
                all[index].load += 1;
                ends.push(std::cmp::Reverse((turn + 1 + mixed(turn) % 40, index)));
            }
            assert_fair(&counts, &[1, 1, 1, 1], balance);
        }
    }

    #[test]
    fn round_robin_rotates_and_spreads_weights() {
        let order = |weights: &[u32], turns| -> Vec<_> {
            let all = candidates(weights);
            (0..turns).map(|turn| choose(Balance::RoundRobin, turn, 0, &all).unwrap()).collect()
        };
        assert_eq!(order(&[1, 1], 4), [0, 1, 0, 1]);
        let mut three = order(&[1, 1, 1], 3);
        three.sort_unstable();
        assert_eq!(three, [0, 1, 2]);
        // The lighter server's turns are not all at the end.
        assert_eq!(order(&[4, 1], 5).iter().filter(|index| **index == 1).count(), 1);
    }

    #[test]
    fn greatest_weights_do_not_overflow() {
        let weights: Vec<_> = (0..64).map(|at| 65535 * 420 * 100 - at).collect();
        let all = candidates(&weights);
        for turn in [0, 1, sum(&all) - 1, sum(&all), u64::MAX] {
            assert!(choose(Balance::RoundRobin, turn, 0, &all).is_some());
        }
    }

    #[test]
    fn less_loaded_server_is_chosen() {
        let mut all = candidates(&[1, 2]);
        (all[0].load, all[1].load) = (2, 3);
        assert_eq!(choose(Balance::LeastConnections, 0, 0, &all), Some(1));
        (all[0].load, all[1].load) = (1, 3);
        assert_eq!(choose(Balance::LeastConnections, 0, 0, &all), Some(0));
        (all[0].load, all[1].load) = (1000, 0);
        let of_first = (0..1000).filter(|turn| choose(Balance::PowerOfTwo, *turn, 0, &all) == Some(0));
        // Both random choices fall on the first server in a ninth of all cases.
        assert!((80..150).contains(&of_first.count()));
    }

    #[test]
    fn server_that_leaves_moves_only_its_own_uris() {
        let all = candidates(&[1, 1, 1, 1]);
        for number in 0..10_000 {
            let before = choose(Balance::Uri, 0, uri(number), &all).unwrap();
            let after = choose(Balance::Uri, 9, uri(number), &all[..3]).unwrap();
            assert!(before == after || before == 3, "{number}");
        }
    }

    #[test]
    fn no_candidate_is_chosen_from_none() {
        for balance in ALL {
            assert_eq!(choose(balance, 3, 3, &[]), None);
        }
    }
}
