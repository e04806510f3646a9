//! HTTP/2 by h2load, the client of nghttp2.
//!
//! It checks the status of each response, and counts the bytes of all bodies, which must be those
//! of the requested objects. A first run requests each object once. The second, for the warm-up
//! time, tells the rate. The third makes the requests of the measured time: the CPU time between
//! its start and its end is theirs. The fourth, which is shorter, gives the response times: the log
//! that contains them costs h2load more than the requests.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Seek as _, Write as _};
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use strait_ledger::Histogram;

use super::super::origin::Count;
use super::super::peer::find;
use super::super::workload::Http2;
use super::{Account, Options, SILENCE_MAX, fetch, tree};
use crate::error::{Error, Result};
use crate::memory_file;

const PROGRAM: &str = "h2load";
/// Windows of a stream and of a connection are 2^n-1 bytes, as large as those of browsers.
const STREAM_WINDOW_BITS: &str = "23";
const CONNECTION_WINDOW_BITS: &str = "24";
/// Limit of the requests of a run.
const REQUESTS_MAX: u64 = 10_000_000;
/// Requests of the measured time for each one with its response time.
const PER_TIMED: u64 = 4;

/// Runs the load and returns its figures.
///
/// # Errors
/// h2load is not installed, or a response is wrong.
pub(super) fn measure(options: &Options, (to, http2): (SocketAddr, Http2)) -> Result<Account> {
    let load = Load::new(options, to, http2)?;
    // A proxy may store responses over HTTP/1.1 and over TLS apart.
    let objects = options.workload.objects.to_string();
    load.run(&["--clients=1", "-n", &objects], None)?;
    let warm_up = load.run(&["-D", &format!("{}ms", options.warm_up.as_millis())], None)?;
    let rate = warm_up.requests as f64 / options.warm_up.as_secs_f64();
    let streams = u64::from(options.workload.connections * http2.streams);
    let requests = ((rate * options.time.as_secs_f64()) as u64).clamp(streams, REQUESTS_MAX);

    let before = (tree::cpu(options.watch)?, fetch::count(options.origin)?);
    let run = load.run(&["-n", &requests.to_string()], None)?;
    let after = (tree::cpu(options.watch)?, fetch::count(options.origin)?);
    let log = memory_file::create("requests")?;
    let timed = load.run(&["-n", &(requests / PER_TIMED).max(streams).to_string()], Some(&log))?;
    let times = response_times(log)?;
    let wrong: Vec<String> = [&run, &timed].iter().filter_map(|run| run.check(load.bytes).err()).collect();
    Ok(Account {
        seconds: run.time.as_secs_f64(),
        requests: run.requests,
        bytes: run.bytes,
        verified: 0,
        origin: Count {
            requests: after.1.requests - before.1.requests,
            bytes: after.1.bytes - before.1.bytes,
        },
        response_ns: [times.p50_ns(), times.p90_ns(), times.p99_ns(), times.max_ns()],
        unanswered: 0,
        errors: wrong.len() as u64,
        first_error: wrong.into_iter().next().unwrap_or_default(),
        cpu_s: after.0.saturating_sub(before.0).as_secs_f64(),
        memory_bytes: tree::memory(options.watch),
    })
}

/// Arguments and input of all runs.
struct Load {
    arguments: Vec<String>,
    /// Its input, a URL in each line.
    _urls: File,
    /// Bytes of each body.
    bytes: u64,
}

/// Figures that h2load prints.
#[derive(Debug, Default, PartialEq)]
struct Run {
    time: Duration,
    /// Requests that were made, and those with a status below 300.
    requests: u64,
    successes: u64,
    /// Bytes of all bodies.
    bytes: u64,
}

impl Load {
    fn new(options: &Options, to: SocketAddr, http2: Http2) -> Result<Self> {
        let workload = &options.workload;
        let scheme = if http2.is_tls { "https" } else { "http" };
        let mut urls = memory_file::create("urls")?;
        let mut bytes = None;
        for number in 0..workload.objects.into() {
            let object = workload.repeated(number);
            if *bytes.get_or_insert(object.size) != object.size {
                return Err(Error::Invalid("objects over HTTP/2 have one size".into()));
            }
            writeln!(urls, "{scheme}://{to}{}", object.target())
                .map_err(|error| Error::file("write a file in memory", error))?;
        }
        let bytes = bytes.ok_or_else(|| Error::Invalid("HTTP/2 needs objects that are hits".into()))?;
        let arguments = [
            format!("--input-file={}", memory_file::path_of(&urls)),
            format!("--clients={}", workload.connections),
            format!("--max-concurrent-streams={}", http2.streams),
            // As over HTTP/1.1: it is a part of the cache key.
            format!("--header=:authority: {}", options.origin),
            format!("--window-bits={STREAM_WINDOW_BITS}"),
            format!("--connection-window-bits={CONNECTION_WINDOW_BITS}"),
            format!("--connection-inactivity-timeout={}", SILENCE_MAX.as_secs()),
        ];
        Ok(Self { arguments: arguments.into(), _urls: urls, bytes })
    }

    fn run(&self, length: &[&str], log: Option<&File>) -> Result<Run> {
        // It ends with this process.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig=KILL", "--"]).arg(find(PROGRAM)?).args(&self.arguments).args(length);
        command.args(log.map(|file| format!("--log-file={}", memory_file::path_of(file))));
        let output = command.output().map_err(|error| Error::file(format!("start {PROGRAM}"), error))?;
        let text = String::from_utf8_lossy(&output.stdout);
        match parse(&text) {
            Some(run) if output.status.success() && run.requests > 0 => Ok(run),
            _ => {
                let error = String::from_utf8_lossy(&output.stderr);
                let line = error.lines().chain(text.lines().rev()).find(|line| !line.is_empty());
                Err(Error::Invalid(format!("{PROGRAM}: {}", line.unwrap_or("it printed nothing"))))
            }
        }
    }
}

impl Run {
    /// Returns an error if a response failed, or if the bodies do not have `bytes` each.
    fn check(&self, bytes: u64) -> Result<(), String> {
        let Self { requests, successes, .. } = self;
        if successes < requests {
            return Err(format!("{} of {requests} requests failed", requests - successes));
        }
        let expected = requests * bytes;
        if self.bytes == expected { Ok(()) } else { Err(format!("{} bytes for {expected}", self.bytes)) }
    }
}

/// Parses the lines "Application protocol: h2", "finished in 1.01s, ...", "requests: N total, N
/// started, N done, N succeeded, ..." and "traffic: ..., 1.2MB (1200000) data".
fn parse(text: &str) -> Option<Run> {
    let line = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
    let before = |line: &str, word: &str| {
        let part = line.split(',').find_map(|part| part.trim().strip_suffix(word))?;
        let number = part.trim().rsplit(' ').next()?;
        number.trim_matches(['(', ')']).parse::<u64>().ok()
    };
    // "h2", or "h2c" without TLS: it takes HTTP/1.1 where a server prefers that.
    line("Application protocol: h2")?;
    let (requests, traffic) = (line("requests: ")?, line("traffic: ")?);
    Some(Run {
        time: duration(line("finished in ")?.split(',').next()?)?,
        requests: before(requests, "done")?,
        successes: before(requests, "succeeded")?,
        bytes: before(traffic, "data")?,
    })
}

/// Parses a time such as 1.01s or 250.30ms.
fn duration(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at(text.find(|char: char| char.is_ascii_alphabetic())?);
    let seconds = match unit {
        "s" => 1.0,
        "ms" => 1e-3,
        "us" => 1e-6,
        _ => return None,
    };
    Duration::try_from_secs_f64(number.parse::<f64>().ok()? * seconds).ok()
}

/// Reads the times of responses: the third column, in microseconds.
fn response_times(mut log: File) -> Result<Histogram> {
    let failed = |error| Error::file(format!("read the log of {PROGRAM}"), error);
    let mut times = Histogram::default();
    log.rewind().map_err(failed)?;
    for line in BufReader::new(log).lines() {
        let line = line.map_err(failed)?;
        let column = line.split('\t').nth(2).and_then(|column| column.parse::<u64>().ok());
        let us = column.ok_or_else(|| Error::Invalid(format!("a line of {PROGRAM}'s log: {line}")))?;
        times.record(us.saturating_mul(1000));
    }
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "starting benchmark...
Application protocol: h2c
finished in 250.30ms, 399.52 req/s, 25.10MB/s
requests: 100 total, 100 started, 100 done, 99 succeeded, 1 failed, 0 errored, 0 timeout
status codes: 99 2xx, 0 3xx, 0 4xx, 1 5xx
traffic: 6.26MB (6560000) total, 1.20KB (1228) headers (space savings 95.21%), 6.19MB (6488064) data
";

    #[test]
    fn figures_are_read_among_other_lines() {
        let time = Duration::from_micros(250_300);
        let run = Run { time, requests: 100, successes: 99, bytes: 6_488_064 };
        assert_eq!(parse(OUTPUT), Some(run));
        assert_eq!(parse(&OUTPUT.replace("h2c", "http/1.1")), None);
        assert_eq!(duration("1.5min"), None);
    }

    #[test]
    fn failed_requests_and_wrong_lengths_are_described() {
        let run = parse(OUTPUT).unwrap();
        assert_eq!(run.check(65536), Err("1 of 100 requests failed".into()));
        let whole = Run { successes: 100, ..run };
        assert_eq!(whole.check(65536), Err("6488064 bytes for 6553600".into()));
        assert_eq!(Run { bytes: 6_553_600, ..whole }.check(65536), Ok(()));
    }

    #[test]
    fn response_times_are_the_third_column() {
        let mut log = memory_file::create("log").unwrap();
        writeln!(log, "1700000000000000\t200\t1500\n1700000000000001\t200\t500").unwrap();
        assert_eq!(response_times(log).unwrap().max_ns() / 100_000, 15);
    }
}
