//! `strait cache`: what a proxy has stored; of one that runs through its admin address, else in its
//! directory.

mod remote;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::{Args as ClapArgs, Subcommand};
use serde_json::{Value, json};
use strait_proxy::{Contents, Pattern};

use self::remote::Remote;
use crate::Error;
use strait_program::output::{print_line, print_text, warn};
use strait_program::parse::address;

/// Options of `strait cache`.
#[derive(ClapArgs)]
#[command(after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{TERMS}"))]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
    /// The admin address of a proxy that runs
    #[arg(long, value_name = "ADDR", value_parser = address, global = true, conflicts_with = "cache_dir")]
    admin: Option<SocketAddr>,
    /// The directory of a proxy that does not run
    #[arg(long, value_name = "DIR", global = true)]
    cache_dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

const EXAMPLES: &str = "Examples:
  strait cache stats --admin 127.0.0.1:3129
  strait cache ls 'http://deb.debian.org/*.deb' --cache-dir /var/cache/strait
  strait cache ban 'http://www.example.org/img/*' --admin 127.0.0.1:3129
  strait cache verify --cache-dir /var/cache/strait --json";

/// What is printed, explained.
const TERMS: &str = "Columns of ls and get: bytes that are stored, seconds for which it is still fresh (negative once it is stale),
status, media type, URI; of a part from which byte of how many it is. - stands for what is not known.

What stats tells, with counts since the proxy was started:
  records         responses and parts that are stored
  used_bytes      bytes of all files, those included that are evicted and still read
  pinned_bytes    bytes of evicted files that clients still read: they take room on the disk until the last reader is done
  capacity_bytes  what used_bytes may come to: cache.size
  files           files that are open
  stored          records that were written
  removed         records that were replaced, or forgotten on request
  evicted         records that were dropped to make room
  reinserted      records that were kept when their file was evicted, for they had been hit
  corrupt         records that were not as they were written, and were dropped
  unsynced        records that a power loss may have damaged, and were dropped at the start
  refused         times that there was no room: the response was passed on and not stored
  failed          calls to the file system that failed
  is_loaded       whether what was stored before the start can be found yet

What verify counts:
  whole           records that are as they were written, to the last byte
  unhashed        records whose bodies went by splice, past the program, and have no checksum: only heads and places were checked
  corrupt         records that were not; a proxy that runs has dropped them
  unreadable      records that could not be read
  bytes           bytes that were read";

#[derive(Subcommand)]
enum Command {
    /// Say how much is stored.
    Stats,
    /// List what is stored, newest first.
    Ls {
        /// Of URIs like this; * stands for anything
        #[arg(default_value = "*")]
        pattern: String,
        /// So many at most
        #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
        most: u32,
    },
    /// Say what is stored for a URI.
    Get {
        /// The URI
        uri: String,
    },
    /// Forget what is stored for a URI.
    Purge {
        /// The URI
        uri: String,
    },
    /// Forget what is stored for all URIs like this.
    Ban {
        /// Of URIs like this; * stands for anything
        pattern: String,
    },
    /// Read and check all that is stored; a proxy that runs drops what is not as it was written.
    Verify,
}

impl Command {
    /// Whether it changes what is stored.
    fn forgets(&self) -> bool {
        matches!(self, Self::Purge { .. } | Self::Ban { .. })
    }

    /// Refuses what names nothing, before anybody is asked.
    fn check(&self) -> Result<(), Error> {
        match self {
            Self::Ls { pattern, .. } | Self::Ban { pattern } => drop(Pattern::new(pattern)?),
            Self::Get { uri } | Self::Purge { uri } => drop(Pattern::of_uri(uri)?),
            Self::Stats | Self::Verify => {}
        }
        Ok(())
    }
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Error> {
    args.command.check()?;
    let mut answer = match (args.admin, &args.cache_dir) {
        (Some(address), _) => Remote(address).ask(&args.command)?,
        (None, Some(dir)) => {
            let contents =
                if args.command.forgets() { Contents::open(dir)? } else { Contents::open_to_read(dir)? };
            let answer = look(&contents, &args.command);
            contents.close();
            answer?
        }
        (None, None) => {
            return Err(Error::usage(
                "give --admin ADDR of a proxy that runs, or --cache-dir DIR of one that does not".to_owned(),
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
            Err(Error::failed(format!("{uri}: nothing is stored for it")))
        }
        Command::Verify => sound(&answer),
        _ => Ok(()),
    }
}

/// What is found in a directory, as a proxy would tell it.
fn look(contents: &Contents, command: &Command) -> Result<Value, Error> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let told = match command {
        Command::Stats => serde_json::to_value(contents.stats()).map(without_capacity),
        Command::Ls { pattern, most } => {
            serde_json::to_value(contents.list(&Pattern::new(pattern)?, one_more(*most), now))
        }
        Command::Get { uri } => serde_json::to_value(contents.get(&Pattern::of_uri(uri)?, now)),
        Command::Purge { uri } => Ok(json!({"stored": contents.purge(&Pattern::of_uri(uri)?)})),
        Command::Ban { pattern } => Ok(json!({"stored": contents.ban(&Pattern::new(pattern)?)})),
        Command::Verify => {
            let verified = contents.verify();
            Ok(json!({
                "whole": verified.whole, "unhashed": verified.unhashed, "corrupt": verified.corrupt,
                "unreadable": verified.unreadable, "bytes": verified.bytes,
            }))
        }
    };
    told.map_err(|error| Error::failed(error.to_string()))
}

/// The limit is the proxy's, and no directory tells it.
fn without_capacity(mut stats: Value) -> Value {
    if let Value::Object(fields) = &mut stats {
        fields.retain(|name, _| name != "capacity_bytes");
    }
    stats
}

/// How many are asked for, to tell whether there are more than `most`.
fn one_more(most: u32) -> usize {
    most as usize + 1
}

/// Leaves `most` of what is listed, and says where that is not all.
fn cut(answer: &mut Value, most: usize) {
    let Value::Array(entries) = answer else { return };
    if entries.len() > most {
        entries.truncate(most);
        warn(format_args!("these are the newest {most}, and there are more: --most N lists so many\n"));
    }
}

/// Whether all that was checked was as it was written.
fn sound(answer: &Value) -> Result<(), Error> {
    let of = |name: &str| answer[name].as_u64().unwrap_or(0);
    match of("corrupt") + of("unreadable") {
        0 => Ok(()),
        wrong => Err(Error::failed(format!("not as they were written, or not to be read: {wrong}"))),
    }
}

fn as_text(command: &Command, answer: &Value) -> String {
    match (command, answer) {
        (Command::Ls { .. } | Command::Get { .. }, Value::Array(entries)) => {
            entries.iter().map(entry).collect()
        }
        (Command::Purge { .. } | Command::Ban { .. }, _) => {
            let at_hand = answer.get("at_hand").map(|count| format!("{count} at hand, "));
            format!("forgotten: {}{} stored\n", at_hand.unwrap_or_default(), answer["stored"])
        }
        (_, Value::Object(fields)) => {
            let lines = fields.iter().map(|(name, value)| format!("{name:<16} {}", plain(value)));
            lines.collect::<Vec<_>>().join("\n") + "\n"
        }
        (_, other) => format!("{other}\n"),
    }
}

/// A line of what is stored: bytes, seconds for which it is fresh, status, media type, URI.
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

/// A value without quotes. What came from outside draws nothing on a terminal.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.escape_debug().to_string(),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    }
}
