//! Predefined queries. Each is a file in the folder `queries`; the first line names its result.

use strait_program::Error;
use strait_program::output::print_text;

/// Predefined query.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Predefined {
    /// Name for `--run`.
    pub(crate) name: &'static str,
    /// Query, with a comment before it.
    pub(crate) sql: &'static str,
}

/// Returns the query in the file of this name.
macro_rules! predefined {
    ($name:literal) => {
        Predefined { name: $name, sql: include_str!(concat!("queries/", $name, ".sql")) }
    };
}

/// Every predefined query.
pub(crate) const QUERIES: [Predefined; 14] = [
    predefined!("top-talkers"),
    predefined!("top-services"),
    predefined!("largest-flows"),
    predefined!("traffic-by-minute"),
    predefined!("new-destinations"),
    predefined!("slow-handshakes"),
    predefined!("retransmissions"),
    predefined!("zero-windows"),
    predefined!("failed-connections"),
    predefined!("port-scans"),
    predefined!("host-scans"),
    predefined!("beacons"),
    predefined!("dns-failures"),
    predefined!("dns-unanswered"),
];

/// Returns the query of this name.
///
/// # Errors
/// There is none.
pub(crate) fn find(name: &str) -> Result<Predefined, Error> {
    QUERIES.into_iter().find(|query| query.name == name).ok_or_else(|| {
        let names: Vec<&str> = QUERIES.iter().map(|query| query.name).collect();
        Error::usage(format!("--run {name}: no such query; give one of {}", names.join(", ")))
    })
}

/// Prints every query.
///
/// # Errors
/// Standard output cannot be written to.
pub(crate) fn list() -> Result<(), Error> {
    let indented = |sql: &str| sql.lines().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n");
    let text = QUERIES.iter().map(|query| format!("{}\n{}\n", query.name, indented(query.sql)));
    print_text(&text.collect::<Vec<_>>().join("\n"))
}
