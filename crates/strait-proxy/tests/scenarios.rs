//! Scenarios of the proxy, one behaviour each: the files in `scenarios`, in the language of
//! `docs/internals/scenarios.md`. Also the tests with TLS, and the table of the rules for caches.

mod rules;
mod tls;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lab::scenario::{Setup, Subject, play};
use strait_proxy::{Clock, Config, Proxy};

/// Number of scenarios that run at a time: most of them wait most of the time.
const TOGETHER: usize = 8;

struct Running {
    proxy: Proxy,
    clock: Clock,
}

impl Subject for Running {
    fn address(&self) -> SocketAddr {
        self.proxy.address()
    }

    fn advance(&self, seconds: u64) {
        self.clock.advance(seconds);
    }

    fn stop(self: Box<Self>) {
        self.proxy.stop();
    }
}

/// Starts a proxy of one worker, unless the scenario's configuration sets another number.
fn start(setup: &Setup<'_>) -> Result<Box<dyn Subject>, String> {
    let mut config = Config::from_toml(setup.config).map_err(|error| error.to_string())?;
    config.listen = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
    config.workers = config.workers.max(1);
    config.timeouts.drain = 1;
    config.cache.dir.get_or_insert_with(|| setup.directory.join("cache"));
    if !setup.is_forward {
        config.origin = Some(format!("http://{}", setup.origin));
    } else if config.access.reach.is_empty() {
        config.access.reach.push("127.0.0.0/8".to_owned());
    }
    let clock = Clock::fixed(setup.now);
    let proxy = Proxy::start(&config, clock.clone()).map_err(|error| error.to_string())?;
    if !proxy.wait_loaded(Duration::from_secs(10)) {
        return Err("the store is not loaded in time".to_owned());
    }
    Ok(Box::new(Running { proxy, clock }))
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios")
}

fn hold(name: &str) {
    let (held, failed) = play(&folder().join(name).with_extension("scenario"), TOGETHER, &start).unwrap();
    assert!(failed.is_empty(), "{} hold, {} do not:\n{}\n", held.len(), failed.len(), failed.join("\n"));
}

/// Defines a test for each file.
macro_rules! scenarios {
    ($($file:ident)*) => {
        $(#[test]
        fn $file() {
            hold(stringify!($file));
        })*

        #[test]
        fn every_file_is_played() {
            let played = [$(stringify!($file)),*];
            for entry in std::fs::read_dir(folder()).unwrap() {
                let path = entry.unwrap().path();
                let name = path.file_stem().unwrap_or_default().to_string_lossy();
                assert!(played.iter().any(|played| *played == name), "{} is not played", path.display());
            }
        }
    };
}

scenarios! {
    access
    bodies
    collapsing
    connections
    directives
    fields
    fills
    forwarded
    freshness
    hosts
    interim
    limits
    invalidation
    keys
    mechanisms
    negative
    options
    origins
    parts
    poisoning
    ranges
    refusals
    stale
    status
    storing
    traces
    tunnels
    validation
    vary
}
