//! Choice of a server in a pool. Without I/O and without a clock: numbers in, an index out.

use strait_http::chunked::is_token;

use crate::config::edge::Balance;

/// Maximum length in bytes of the name of a field or a cookie.
const NAME_BYTES_MAX: usize = 64;
/// Requests in progress that a server has room for in any case. Below them the loads say little,
/// and a key should stay at its server.
const ROOM_MIN: u128 = 8;

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

impl Balance {
    /// Parses the text of the file.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let name = |kind| {
            let name = text.strip_prefix(kind)?.strip_prefix(':')?;
            (is_token(name.as_bytes()) && name.len() <= NAME_BYTES_MAX).then(|| name.into())
        };
        match text {
            "round-robin" => Some(Self::RoundRobin),
            "least-connections" => Some(Self::LeastConnections),
            "power-of-two" => Some(Self::PowerOfTwo),
            "uri" => Some(Self::Uri),
            _ => name("header").map(Self::Header).or_else(|| name("cookie").map(Self::Cookie)),
        }
    }

    /// Returns true if it chooses by a hash of the request, which the client decides.
    pub(crate) fn is_by_hash(&self) -> bool {
        matches!(self, Self::Uri | Self::Header(_) | Self::Cookie(_))
    }
}

impl TryFrom<String> for Balance {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text).ok_or("unknown balance")
    }
}

impl From<Balance> for String {
    fn from(balance: Balance) -> Self {
        match balance {
            Balance::RoundRobin => "round-robin".to_owned(),
            Balance::LeastConnections => "least-connections".to_owned(),
            Balance::PowerOfTwo => "power-of-two".to_owned(),
            Balance::Uri => "uri".to_owned(),
            Balance::Header(name) => format!("header:{name}"),
            Balance::Cookie(name) => format!("cookie:{name}"),
        }
    }
}

/// Chooses one of the candidates and returns its index; `None` if there are none. `turn` differs
/// for each choice and grows by 1; `hash` is that of the part of the request by which the balance
/// chooses, if it has that part.
pub(crate) fn choose(
    balance: &Balance,
    turn: u64,
    hash: Option<u64>,
    candidates: &[Candidate],
) -> Option<usize> {
    let chosen = match balance {
        Balance::RoundRobin => in_turn(turn, candidates),
        Balance::LeastConnections => {
            let least = candidates.iter().min_by(|one, other| one.compare_load(other))?;
            let is_least = |it: &&Candidate| it.compare_load(least).is_eq();
            let least: Vec<_> = candidates.iter().filter(is_least).copied().collect();
            return Some(in_turn(turn, &least)?.index);
        }
        Balance::Uri | Balance::Header(_) | Balance::Cookie(_) if hash.is_some() => {
            by_hash(hash?, candidates)
        }
        Balance::PowerOfTwo | Balance::Uri | Balance::Header(_) | Balance::Cookie(_) => {
            let one = at(mixed(turn), candidates)?;
            let other = at(mixed(!turn), candidates)?;
            Some(if other.compare_load(one).is_lt() { other } else { one })
        }
    };
    chosen.map(|candidate| candidate.index)
}

/// Returns the candidate with the highest score among those with room, so that a key with many
/// requests does not overload its server. At least one has room, because their shares of the load
/// with this request are more than the load.
fn by_hash(hash: u64, candidates: &[Candidate]) -> Option<&Candidate> {
    let (load, weight) = (candidates.iter().map(|it| it.load).sum(), sum(candidates));
    let with_room = candidates.iter().filter(|it| it.has_room(load, weight));
    with_room.max_by(|one, other| one.score(hash).total_cmp(&other.score(hash)))
}

impl Candidate {
    /// Compares the loads in proportion to the weights.
    fn compare_load(&self, other: &Self) -> std::cmp::Ordering {
        let scaled = |load: u64, weight: u32| u128::from(load) * u128::from(weight);
        scaled(self.load, other.weight).cmp(&scaled(other.load, self.weight))
    }

    /// Returns true if another request leaves the server with at most 1.25 times its share of all
    /// requests in progress (consistent hashing with bounded loads, Mirrokni et al. 2018), or with
    /// few. `load` and `weight` are the sums over all candidates.
    fn has_room(&self, load: u64, weight: u64) -> bool {
        let share = (u128::from(load) + 1) * u128::from(self.weight);
        let bound = (share * 5).div_ceil(u128::from(weight.max(1)) * 4);
        u128::from(self.load) < bound.max(ROOM_MIN)
    }

    /// Returns the score of the server for a key in weighted rendezvous hashing: the highest score
    /// wins. A server that leaves or joins moves only its own keys.
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

    fn all() -> Vec<Balance> {
        let texts =
            ["round-robin", "least-connections", "power-of-two", "uri", "header:X-User", "cookie:session"];
        texts.into_iter().map(|text| Balance::parse(text).unwrap()).collect()
    }

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

    /// Hash of a random key, as of a session.
    fn session(number: u64) -> u64 {
        strait_store::hash_of(format!("{:016x}", mixed(number ^ 0x5eed)).as_bytes())
    }

    /// Asserts that each candidate has its share of the choices to 2 %.
    fn assert_fair(counts: &[u64], weights: &[u32], what: &Balance) {
        let sum: u32 = weights.iter().sum();
        for (count, weight) in counts.iter().zip(weights) {
            let share = CHOICES as f64 * f64::from(*weight) / f64::from(sum);
            let error = (*count as f64 - share).abs() / share;
            assert!(error < 0.02, "{what:?} {weights:?}: {counts:?}");
        }
    }

    #[test]
    fn every_balance_is_fair_by_weight() {
        const KEYS: [fn(u64) -> Option<u64>; 3] =
            [|number| Some(uri(number)), |number| Some(session(number)), |_| None];
        for weights in [&[1][..], &[1, 1], &[1, 1, 1], &[1, 1, 1, 1, 1], &[3, 1], &[5, 3, 2]] {
            for balance in all() {
                for key in KEYS {
                    let all = candidates(weights);
                    let mut counts = vec![0; weights.len()];
                    for turn in 0..CHOICES {
                        counts[choose(&balance, turn, key(turn), &all).unwrap()] += 1;
                    }
                    assert_fair(&counts, weights, &balance);
                }
            }
        }
    }

    #[test]
    fn key_with_many_requests_leaves_each_server_with_at_most_1_25_times_its_share() {
        let balance = Balance::Header("X-User".into());
        for weights in [&[1, 1, 1, 1][..], &[5, 3, 2], &[1, 1]] {
            let (mut all, sum) = (candidates(weights), weights.iter().sum::<u32>());
            for load in 1..=2000 {
                let chosen = choose(&balance, load, Some(session(7)), &all).unwrap();
                all[chosen].load += 1;
                for it in &all {
                    let bound = (load * u64::from(it.weight) * 5).div_ceil(u64::from(sum) * 4);
                    assert!(it.load <= bound.max(8), "{weights:?} of {load}: {all:?}");
                }
            }
            // 1.25 times the shares of two servers can be all requests.
            assert!(all.iter().filter(|it| it.load > 0).count() >= 2, "{all:?}");
        }
    }

    #[test]
    fn key_has_its_server_while_that_has_room() {
        let mut all = candidates(&[1, 1, 1]);
        let first: Vec<_> =
            (0..100).map(|key| choose(&Balance::Uri, 0, Some(uri(key)), &all).unwrap()).collect();
        let second = |all: &[Candidate]| -> Vec<_> {
            (0..100).map(|key| choose(&Balance::Uri, 1, Some(uri(key)), all).unwrap()).collect()
        };
        // A few requests, or loads that differ little, move none.
        for loads in [[7, 0, 0], [120, 100, 110]] {
            all.iter_mut().zip(loads).for_each(|(it, load)| it.load = load);
            assert_eq!(second(&all), first, "{loads:?}");
        }
        all[0].load = 200;
        let moved = second(&all);
        assert!(moved.iter().zip(&first).all(|(new, old)| *new != 0 && (new == old || *old == 0)));
    }

    #[test]
    fn request_without_the_field_goes_to_the_better_of_two() {
        let mut all = candidates(&[1, 1]);
        all[0].load = 1000;
        let balance = Balance::Cookie("session".into());
        let of_first = (0..1000).filter(|turn| choose(&balance, *turn, None, &all) == Some(0));
        // Both random choices fall on it in a quarter of all cases.
        assert!((200..300).contains(&of_first.count()));
    }

    #[test]
    fn texts_of_the_file_are_read_and_written() {
        for balance in all() {
            assert_eq!(Balance::try_from(String::from(balance.clone())), Ok(balance));
        }
        let long = format!("cookie:{}", "a".repeat(65));
        for text in ["", "random", "header", "header:", "header:a b", "cookie:a=b", "header: X", &long] {
            assert_eq!(Balance::parse(text), None, "{text}");
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
                let index = choose(&balance, turn, None, &all).unwrap();
                counts[index] += 1;
                all[index].load += 1;
                ends.push(std::cmp::Reverse((turn + 1 + mixed(turn) % 40, index)));
            }
            assert_fair(&counts, &[1, 1, 1, 1], &balance);
        }
    }

    #[test]
    fn round_robin_rotates_and_spreads_weights() {
        let order = |weights: &[u32], turns| -> Vec<_> {
            let all = candidates(weights);
            (0..turns).map(|turn| choose(&Balance::RoundRobin, turn, None, &all).unwrap()).collect()
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
            assert!(choose(&Balance::RoundRobin, turn, None, &all).is_some());
        }
    }

    #[test]
    fn less_loaded_server_is_chosen() {
        let mut all = candidates(&[1, 2]);
        (all[0].load, all[1].load) = (2, 3);
        assert_eq!(choose(&Balance::LeastConnections, 0, None, &all), Some(1));
        (all[0].load, all[1].load) = (1, 3);
        assert_eq!(choose(&Balance::LeastConnections, 0, None, &all), Some(0));
        (all[0].load, all[1].load) = (1000, 0);
        let of_first = (0..1000).filter(|turn| choose(&Balance::PowerOfTwo, *turn, None, &all) == Some(0));
        // Both random choices fall on the first server in a ninth of all cases.
        assert!((80..150).contains(&of_first.count()));
    }

    #[test]
    fn server_that_leaves_moves_only_its_own_uris() {
        let all = candidates(&[1, 1, 1, 1]);
        for number in 0..10_000 {
            let before = choose(&Balance::Uri, 0, Some(uri(number)), &all).unwrap();
            let after = choose(&Balance::Uri, 9, Some(uri(number)), &all[..3]).unwrap();
            assert!(before == after || before == 3, "{number}");
        }
    }

    #[test]
    fn no_candidate_is_chosen_from_none() {
        for balance in all() {
            assert_eq!(choose(&balance, 3, Some(3), &[]), None);
        }
    }
}
