//! Fuzzes the configuration of the proxy: whatever the file, reading and checking it ends with a
//! configuration or with problems, one a line. Configurations that name files are only read.

#![no_main]

use libfuzzer_sys::fuzz_target;
use strait_proxy::Config;

/// Maximum of clients in all tables of limits: they take memory at once.
const CLIENTS_MAX: u64 = 1 << 16;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let config = match Config::from_toml(text) {
        Ok(config) => config,
        Err(error) => return assert_lines(&error.to_string()),
    };
    if Config::is_blank(text) {
        assert_eq!(config, Config::default());
    }
    if reads_files(&config) || clients(&config) > CLIENTS_MAX {
        return;
    }
    if let Err(error) = config.check() {
        assert_lines(&Config::locate(text, error).to_string());
    }
});

/// Each line of a message has a problem.
fn assert_lines(message: &str) {
    assert!(!message.is_empty() && message.lines().all(|line| !line.trim().is_empty()), "{message:?}");
}

/// Returns true if the check reads files: certificates, authorities or users.
fn reads_files(config: &Config) -> bool {
    let tls = &config.tls;
    let has_https = |server: &String| server.contains("https");
    let of_site = config.site.iter().any(|site| {
        site.certificate.is_some()
            || site.key.is_some()
            || site.route.iter().any(|route| route.auth.is_some())
    });
    of_site
        || tls.certificate.is_some()
        || tls.key.is_some()
        || config.origin.iter().any(has_https)
        || config.pool.values().any(|pool| pool.servers.iter().any(has_https))
}

fn clients(config: &Config) -> u64 {
    let routes = config.site.iter().flat_map(|site| &site.route);
    routes.filter_map(|route| route.rate.as_ref()).fold(0, |sum, rate| sum.saturating_add(rate.clients))
}
