//! Examples of queries: every engine finds the known content of the tables of ten sensors.

use std::path::{Path, PathBuf};
use std::time::Duration;

use lab::{Finished, Launch, fetched_or_skip, program_or_skip};

use crate::rig::{LIMIT, run};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/lake");
/// Results for the sensors of `make_captures.py`.
const EXPECTED: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/lake/expected.txt"));
/// Sensors of `make_captures.py`.
const SENSORS: usize = 10;
/// Time limit of an engine. Spark starts slowly on a busy machine.
const ENGINE_LIMIT: Duration = Duration::from_mins(10);

/// Python, and the tables that the commands in the README of the examples make.
struct Lake {
    python: PathBuf,
    directory: tempfile::TempDir,
}

impl Lake {
    /// Skips the test if the engines of this environment are not installed.
    fn or_skip(environment: &str) -> Option<Self> {
        let lake = Self { python: engine_or_skip(environment)?, directory: tempfile::tempdir().unwrap() };
        let captures = lake.directory.path().join("captures");
        let _ = example(&lake.python, "make_captures.py").arg(&captures).run(LIMIT).unwrap().success();
        let to = format!("file:{}", lake.path().display());
        for number in 1..=SENSORS {
            let sensor = format!("s{number:02}");
            let file = captures.join(format!("{sensor}.pcap"));
            let file = file.to_str().unwrap();
            let options = ["capture", "-r", file, "--to", &to, "--tables", "flows,dns", "--sensor", &sensor];
            let _ = run(&options).success();
        }
        Some(lake)
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("lake")
    }

    /// Runs an example on the tables.
    fn ask(&self, name: &str, queries: &[&str]) -> Finished {
        example(&self.python, name).arg(self.path()).args(queries).run(ENGINE_LIMIT).unwrap()
    }
}

/// Compares the results of every query with the content of the captures, and so with the other
/// engines.
fn assert_finds_the_content(name: &str, environment: &str) {
    let Some(lake) = Lake::or_skip(environment) else { return };
    assert_eq!(lake.ask(name, &[]).success().text(), EXPECTED);
}

/// Returns Python of an environment with engines, or skips the test. The list of programs is there
/// after the engines.
fn engine_or_skip(environment: &str) -> Option<PathBuf> {
    fetched_or_skip(&format!("{environment}/installed.txt"))?;
    fetched_or_skip(&format!("{environment}/bin/python"))
}

/// Returns an example to run. Spark then uses loopback only, and one task for each stage.
fn example(python: &Path, name: &str) -> Launch<'static> {
    Launch::new(python)
        .arg(Path::new(EXAMPLES).join(name))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("SPARK_LOCAL_IP", "127.0.0.1")
        .env("SPARK_SUBMIT_OPTS", "-Dspark.ui.enabled=false -Dspark.sql.shuffle.partitions=1")
}

#[test]
fn duckdb_finds_the_content_of_ten_sensors() {
    assert_finds_the_content("with_duckdb.py", "tables");
}

#[test]
fn polars_finds_the_content_of_ten_sensors() {
    assert_finds_the_content("with_polars.py", "tables");
}

#[test]
fn clickhouse_finds_the_content_of_ten_sensors() {
    assert_finds_the_content("with_clickhouse.py", "engines");
}

#[test]
fn spark_finds_the_content_of_ten_sensors() {
    if program_or_skip("java") {
        assert_finds_the_content("with_spark.py", "engines");
    }
}

#[test]
fn examples_run_the_named_queries_and_refuse_others() {
    let Some(lake) = Lake::or_skip("tables") else { return };
    let (_, beacons) = EXPECTED.split_once("# beacons\n").unwrap();
    let (beacons, _) = beacons.split_once("# ").unwrap();
    for name in ["with_duckdb.py", "with_polars.py"] {
        let text = lake.ask(name, &["beacons"]).success().text();
        assert_eq!(text, format!("# beacons\n{beacons}"), "{name}");
        let unknown = lake.ask(name, &["beacon"]);
        assert_eq!(unknown.status.code(), Some(1), "{name}");
        let message = "beacon: no such query; give some of top-talkers, ";
        assert!(unknown.stderr.contains(message), "{name}: {}", unknown.stderr);
    }
}

#[test]
fn queries_need_no_tables_but_their_own() {
    for (name, environment) in [("with_duckdb.py", "tables"), ("with_clickhouse.py", "engines")] {
        let Some(lake) = Lake::or_skip(environment) else { return };
        std::fs::remove_dir_all(lake.path().join("dns")).unwrap();
        let text = lake.ask(name, &["losses"]).success().text();
        assert_eq!(text.lines().count(), SENSORS + 3, "{name}: {text}");
    }
}
