//! Parts of the limits: what one client has of the connections to an origin and of the memory for
//! request bodies, and how many fetches may be in the background.
//!
//! [`crate::config::settings`] asks. A part that the file does not set follows the limit that it is a part
//! of. Pure.

use bytesize::ByteSize;

use crate::config::file::Limits;
use crate::io::buffer::BUFFER_BYTES;
use crate::io::gate;
use crate::upstream::background;

/// Parts of limits that are not set: one client has a quarter of an origin's connections, and of
/// the memory for request bodies; a fifth of an origin's connections may be in the background, and
/// a tenth of those for one client.
const CLIENT_PARTS: usize = 4;
const BACKGROUND_PARTS: usize = 5;
const BACKGROUND_CLIENT_PARTS: usize = 10;

/// Places of each gate.
pub(crate) fn gates(limits: &Limits) -> gate::Limits {
    let bodies =
        |memory: ByteSize| usize::try_from(memory.as_u64() / BUFFER_BYTES as u64).unwrap_or(usize::MAX);
    let (origin, ahead) = (limits.origin_connections, bodies(limits.request_ahead_memory));
    let ahead_of_client = limits.request_ahead_memory_per_client.map(bodies);
    gate::Limits {
        origin,
        origin_of_client: part(limits.origin_connections_per_client, origin, CLIENT_PARTS),
        ahead,
        ahead_of_client: part(ahead_of_client, ahead, CLIENT_PARTS),
    }
}

/// Fetches that no client waits for.
pub(crate) fn background(limits: &Limits) -> background::Limits {
    let default = limits.origin_connections.div_ceil(BACKGROUND_PARTS);
    let of_origin = limits.background_fetches.unwrap_or(default);
    let of_client = part(limits.background_fetches_per_client, of_origin, BACKGROUND_CLIENT_PARTS);
    background::Limits { of_origin, of_client }
}

/// What one client has of `all`: unset a part of them, 0 as many as there are.
fn part(set: Option<usize>, all: usize, parts: usize) -> usize {
    match set {
        None => all.div_ceil(parts),
        Some(0) => all,
        Some(most) => most,
    }
}

#[cfg(test)]
mod tests {
    use crate::config::file::Config;
    use crate::config::settings::Settings;

    #[test]
    fn one_client_has_a_part_of_each_limit_unless_it_is_set() {
        let of = |toml: &str| {
            let settings = Settings::new(&Config::from_toml(toml).unwrap()).unwrap();
            let (gates, background) = (settings.gates, settings.background);
            let connections = (gates.origin, gates.origin_of_client, background.of_origin);
            (connections, background.of_client, (gates.ahead, gates.ahead_of_client))
        };
        assert_eq!(of(""), ((2000, 500, 400), 40, (2048, 512)));
        assert_eq!(of("limits.origin_connections = 2"), ((2, 1, 1), 1, (2048, 512)));
        let set = "[limits]\norigin_connections_per_client = 7\nbackground_fetches = 6\n";
        assert_eq!(of(set), ((2000, 7, 6), 1, (2048, 512)));
        let all = "[limits]\norigin_connections_per_client = 0\nbackground_fetches_per_client = 0\nrequest_ahead_memory_per_client = 0\n";
        assert_eq!(of(all), ((2000, 2000, 400), 400, (2048, 2048)));
        assert_eq!(of("limits.background_fetches = 0").1, 0);
    }
}
