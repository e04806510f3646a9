//! `strait cache`: stored responses of a proxy, by the admin address of a running one or in the
//! directory of a stopped one, and draining of the servers of a running one.

mod remote;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::{Args as ClapArgs, Subcommand};
use serde_json::{Value, json};
use strait_program::output::{print_line, print_text, warn};
use strait_program::parse::address;
use strait_program::{Error, prefix};
use strait_proxy::{Contents, Pattern, Tag};

use self::remote::Remote;

/// Options of `strait cache`.
#[derive(ClapArgs)]
#[command(after_help = examples(), after_long_help = format!("{}\n\n{TERMS}", examples()))]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
    /// Admin address of a running proxy
    #[arg(long, value_name = "ADDR", value_parser = address, global = true, conflicts_with = "cache_dir")]
    admin: Option<SocketAddr>,
    /// Directory of a stopped proxy
    #[arg(long, value_name = "DIR", global = true)]
    cache_dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

/// Returns the examples of the help, with the name by which the program was called.
fn examples() -> String {
    let name = prefix();
    format!(
        "Examples:
  {name} cache stats --admin 127.0.0.1:3129
  {name} cache ls 'http://example.com/*.png' --cache-dir /var/cache/strait
  {name} cache ban 'http://www.example.org/img/*' --admin 127.0.0.1:3129
  {name} cache verify --cache-dir /var/cache/strait --json"
    )
}

/// Explanation of the output.
const TERMS: &str = "Columns of ls and get: stored bytes, remaining freshness lifetime in seconds (negative if stale), status, media type, URI;
for a part also its first byte and the length of the whole. - stands for an unknown value.

Output of stats, with counts since the start of the proxy:
  records         stored responses and parts
  used_bytes      bytes of all files, also of evicted files that are still read
  pinned_bytes    bytes of evicted files that clients still read: the disk space is free after the last reader
  capacity_bytes  limit of used_bytes: cache.size
  files           open files
  stored          records written
  removed         records replaced, or removed on request
  evicted         records removed by eviction
  reinserted      records kept when their file was evicted, because they had enough requests
  reinserted_bytes  bytes of records that eviction has written again
  corrupt         records with a wrong checksum or head, dropped
  scrubbed        records that the scrub has found intact
  scrubbed_bytes  bytes that the scrub has read
  scrub_cpu_ns    CPU time of the scrub in nanoseconds
  unsynced        records that a power loss may have damaged, dropped at the start
  refused         responses not stored for lack of space; clients got them
  without_spare   segments that a worker created itself or waited for, because no spare was ready
  failed          failed calls to the file system
  lost            directories that cannot be used
  is_loaded       true once the index of earlier responses is loaded

Output of verify:
  whole           records with correct heads and bodies
  unhashed        records with correct heads, and bodies without a checksum; a running proxy has added it
  corrupt         damaged records; a running proxy has dropped them
  unreadable      records that could not be read
  bytes           bytes read";

#[derive(Subcommand)]
enum Command {
    /// Print counts and sizes.
    Stats,
    /// List stored responses, newest first.
    Ls {
        /// Pattern of URIs; * matches any text
        #[arg(default_value = "*")]
        pattern: String,
        /// Largest number of lines
        #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
        most: u32,
    },
    /// List the stored responses of a URI.
    Get {
        /// The URI
        uri: String,
    },
    /// Remove the stored responses of a URI, or those with a tag, or mark them as stale.
    Purge {
        /// The URI
        #[arg(required_unless_present = "tag", conflicts_with = "tag")]
        uri: Option<String>,
        /// Tag in the fields Surrogate-Key, Cache-Tag or xkey of the responses
        #[arg(long)]
        tag: Option<String>,
        /// Mark them as stale in place of removing them: they may still answer while they are
        /// validated, or if the origin fails (stale-while-revalidate, stale-if-error)
        #[arg(long)]
        soft: bool,
    },
    /// Remove the stored responses of all URIs that match a pattern.
    Ban {
        /// Pattern of URIs; * matches any text
        pattern: String,
    },
    /// Read and check all stored responses; a running proxy drops damaged ones.
    Verify,
    /// Send no new requests to a server of a pool; those in progress end as usual.
    Drain {
        /// Server as /status.json names it, as in 10.0.0.1:8080 or unix:/run/app.sock
        server: String,
        /// Pool that it is taken out of [default: all that have it]
        #[arg(long, value_name = "NAME")]
        pool: Option<String>,
        /// Send requests to it again
        #[arg(long)]
        undo: bool,
    },
}

impl Command {
    /// Returns true if it removes responses.
    fn removes(&self) -> bool {
        matches!(self, Self::Purge { .. } | Self::Ban { .. })
    }

    /// Refuses an empty pattern and an incomplete URI before the request to the proxy.
    fn check(&self) -> Result<(), Error> {
        match self {
            Self::Ls { pattern, .. } | Self::Ban { pattern } => drop(Pattern::new(pattern)?),
            Self::Get { uri } => drop(Pattern::of_uri(uri)?),
            Self::Purge { uri, tag, .. } => drop(PurgeOf::new(uri.as_deref(), tag.as_deref())?),
            Self::Stats | Self::Verify | Self::Drain { .. } => {}
        }
        Ok(())
    }
}

/// Responses that `purge` removes.
enum PurgeOf {
    /// Those of a cache key.
    Key(String),
    /// Those with a tag.
    Tag(Tag),
}

impl PurgeOf {
    fn new(uri: Option<&str>, tag: Option<&str>) -> Result<Self, Error> {
        Ok(match tag {
            Some(tag) => Self::Tag(Tag::new(tag)?),
            None => Self::Key(Pattern::of_uri(uri.unwrap_or_default())?),
        })
    }
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Error> {
    args.command.check()?;
    let mut answer = match (args.admin, &args.cache_dir) {
        (Some(address), _) => Remote(address).run(&args.command)?,
        (None, Some(dir)) => {
            let contents =
                if args.command.removes() { Contents::open(dir)? } else { Contents::open_to_read(dir)? };
            let answer = look(&contents, &args.command);
            contents.close();
            answer?
        }
        (None, None) => {
            return Err(Error::usage(
                "give --admin ADDR of a running proxy, or --cache-dir DIR of a stopped one".to_owned(),
            ));
        }
    };
    if let Command::Ls { most, .. } = args.command {
        cut(&mut answer, most as usize);
    }
    if args.json {
        print_line(&answer.to_string())?;
    } else {
        print_text(&as_text(&args.command, &answer))?;
    }
    match &args.command {
        Command::Get { uri } if answer.as_array().is_some_and(Vec::is_empty) => {
            Err(Error::failed(format!("{uri}: no stored response")))
        }
        Command::Verify => sound(&answer),
        _ => Ok(()),
    }
}

/// Runs a command on a directory. The result has the form of a running proxy's answer.
fn look(contents: &Contents, command: &Command) -> Result<Value, Error> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let answer = match command {
        Command::Stats => serde_json::to_value(contents.stats()).map(without_capacity),
        Command::Ls { pattern, most } => {
            serde_json::to_value(contents.list(&Pattern::new(pattern)?, one_more(*most), now))
        }
        Command::Get { uri } => serde_json::to_value(contents.get(&Pattern::of_uri(uri)?, now)),
        Command::Purge { uri, tag, soft } => {
            let stored = match (PurgeOf::new(uri.as_deref(), tag.as_deref())?, soft) {
                (PurgeOf::Key(key), false) => contents.purge(&key),
                (PurgeOf::Key(key), true) => contents.expire(&key, now),
                (PurgeOf::Tag(tag), false) => contents.purge_tag(&tag),
                (PurgeOf::Tag(tag), true) => contents.expire_tag(&tag, now),
            };
            Ok(json!({ "stored": stored }))
        }
        Command::Ban { pattern } => Ok(json!({"stored": contents.ban(&Pattern::new(pattern)?)})),
        Command::Drain { .. } => {
            return Err(Error::usage(
                "give --admin ADDR of a running proxy, which has the servers".to_owned(),
            ));
        }
        Command::Verify => {
            let verified = contents.verify();
            Ok(json!({
                "whole": verified.whole, "unhashed": verified.unhashed, "corrupt": verified.corrupt,
                "unreadable": verified.unreadable, "bytes": verified.bytes,
            }))
        }
    };
    answer.map_err(|error| Error::failed(error.to_string()))
}

/// Removes the capacity: it is an option of the proxy and not recorded in the directory.
fn without_capacity(mut stats: Value) -> Value {
    if let Value::Object(fields) = &mut stats {
        fields.retain(|name, _| name != "capacity_bytes");
    }
    stats
}

/// Returns the number of entries to request: one more shows that there are more than `most`.
fn one_more(most: u32) -> usize {
    most as usize + 1
}

/// Cuts a list to `most` entries, and reports that there are more.
fn cut(answer: &mut Value, most: usize) {
    let Value::Array(entries) = answer else { return };
    if entries.len() > most {
        entries.truncate(most);
        warn(format_args!("only the newest {most} are listed: --most N lists more\n"));
    }
}

/// Fails if `verify` found damaged or unreadable records.
fn sound(answer: &Value) -> Result<(), Error> {
    let of = |name: &str| answer[name].as_u64().unwrap_or(0);
    match of("corrupt") + of("unreadable") {
        0 => Ok(()),
        wrong => Err(Error::failed(format!("damaged or unreadable records: {wrong}"))),
    }
}

fn as_text(command: &Command, answer: &Value) -> String {
    match (command, answer) {
        (Command::Ls { .. } | Command::Get { .. }, Value::Array(entries)) => {
            entries.iter().map(entry).collect()
        }
        (Command::Purge { .. } | Command::Ban { .. }, _) => {
            let memory = answer.get("in_memory").map(|count| format!("{count} in memory, "));
            let is_soft = matches!(command, Command::Purge { soft: true, .. });
            let what = if is_soft { "marked as stale" } else { "removed" };
            format!("{what}: {}{} stored\n", memory.unwrap_or_default(), answer["stored"])
        }
        (Command::Drain { undo, .. }, _) => {
            let what = if *undo { "gets requests again" } else { "gets no new requests" };
            format!("{what}, in pools: {}\n", answer["pools"])
        }
        (_, Value::Object(fields)) => {
            let lines = fields.iter().map(|(name, value)| format!("{name:<16} {}", plain(value)));
            lines.collect::<Vec<_>>().join("\n") + "\n"
        }
        (_, other) => format!("{other}\n"),
    }
}

/// Returns the line of a response: bytes, freshness in seconds, status, media type, URI.
fn entry(entry: &Value) -> String {
    let part = match (entry["first"].as_u64(), entry["length"].as_u64(), entry["bytes"].as_u64()) {
        (Some(first), Some(length), Some(bytes)) if bytes < length => format!(" from {first} of {length}"),
        _ => String::new(),
    };
    format!(
        "{:>12} {:>9} {} {} {}{part}\n",
        plain(&entry["bytes"]),
        plain(&entry["ttl"]),
        plain(&entry["status"]),
        plain(&entry["content_type"]),
        plain(&entry["uri"])
    )
}

/// Returns a value without quotes. Control characters are escaped: a URI must not control the
/// terminal.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.escape_debug().to_string(),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    }
}
