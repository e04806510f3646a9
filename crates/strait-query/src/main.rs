//! The program `strait-query`, which `strait query` executes: SQL over packet captures.
//!
//! The tables are those of `strait capture --to`: read from its Parquet files, or made from capture
//! files while the query runs. The engine and its crates are here and not in `strait`, to which
//! users give capabilities.

mod capture;
mod engine;
mod error;
mod index;
mod interrupt;
mod library;
mod output;
mod source;
mod stored;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, CommandFactory as _, Parser, Subcommand};
use futures::StreamExt as _;
use strait_capture::Compression;
use strait_os::process::CAP_DAC_OVERRIDE;
use strait_program::output::warn;
use strait_program::replace::is_same_file;
use strait_program::{Error, Streams, pages, parse};

use crate::capture::retrieve::{self, Retrieved};
use crate::capture::{Defects, Extent, Selection};
use crate::engine::{Engine, Limits};
use crate::interrupt::Interrupt;
use crate::output::{Form, Output};
use crate::source::Sources;

/// Runs a query in SQL over capture files, or over the tables of strait capture --to.
#[derive(Parser)]
#[command(name = "strait-query", version, args_conflicts_with_subcommands = true, after_help = HELP)]
struct Line {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    query: Query,
}

const HELP: &str = "Examples:
  strait query 'select source_address, sum(length) as bytes from packets group by 1 order by 2 desc' day.pcapng
  strait query \"select * from flows where date = '2026-11-25' and destinationTransportPort = 443\" /srv/lake
  strait query --run top-talkers day.pcapng
  strait query --list
  strait query --json 'select query, count(*) as queries from dns group by query' *.pcapng
  strait query 'show tables' /srv/lake
  strait query --index day.pcapng";

#[derive(Args)]
#[group(skip)]
struct Query {
    /// Query in SQL; with --run or --index, a file
    #[arg(value_name = "SQL")]
    sql: Option<String>,
    /// Capture files (pcap, pcapng), or Parquet files and directories of strait capture --to
    #[arg(value_name = "FILE")]
    files: Vec<String>,
    /// List the predefined queries with their SQL
    #[arg(long, conflicts_with_all = ["run", "sql", "csv", "json", "output"])]
    list: bool,
    /// Run a predefined query
    #[arg(long, value_name = "NAME")]
    run: Option<String>,
    /// Print CSV
    #[arg(long, conflicts_with_all = ["json", "output"])]
    csv: bool,
    /// Print one JSON object for each row
    #[arg(long, conflicts_with = "output")]
    json: bool,
    /// Write the rows to a Parquet file
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write the packets of the rows from the capture files to a pcapng file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["csv", "json", "output", "list"])]
    pcap: Option<PathBuf>,
    /// Capture file from which --pcap takes the packets, if the query reads tables; several by
    /// several options
    #[arg(long, value_name = "FILE", requires = "pcap")]
    from: Vec<String>,
    /// Write an index beside each capture file, FILE.sidx, with which queries and --pcap read only
    /// the needed parts of the file
    #[arg(long, conflicts_with_all = ["list", "run", "csv", "json", "output", "pcap"])]
    index: bool,
    /// Memory for sorting, grouping and joining, in MiB without a unit
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = memory)]
    memory: u64,
    /// Temporary files for what does not fit into the memory, in MiB without a unit; 0 for none
    #[arg(long, value_name = "SIZE", default_value = "10GiB", value_parser = parse::mebibytes)]
    spill: u64,
}

#[derive(Subcommand)]
enum Command {
    /// Print a completion script for a shell.
    Completions(pages::CompletionArgs),
    /// Write the man pages to a directory.
    Man(pages::ManArgs),
}

/// Stack of a thread. The system gives memory only to the used part.
const STACK_BYTES: usize = 64 << 20;

/// Time in which an interrupted query removes its temporary files.
const SHUTDOWN_MAX: Duration = Duration::from_secs(2);

/// Endings of compressed files, beside those of [`Compression`].
const OTHER_COMPRESSIONS: [&str; 2] = ["xz", "bz2"];

/// Smallest permitted memory.
const MEMORY_BYTES_MIN: u64 = 16 << 20;

fn memory(text: &str) -> Result<u64, String> {
    let bytes = parse::mebibytes(text)?;
    if bytes < MEMORY_BYTES_MIN {
        return Err(format!("give at least {}MiB", MEMORY_BYTES_MIN >> 20));
    }
    Ok(bytes)
}

impl Line {
    fn run(&self) -> Result<(), Error> {
        match &self.command {
            None => self.query.run(),
            Some(Command::Completions(args)) => {
                Streams::output(true).check()?;
                Ok(pages::completions(args, &mut Self::command())?)
            }
            Some(Command::Man(args)) => Ok(pages::man(&args.directory, Self::command())?),
        }
    }
}

impl Query {
    fn run(&self) -> Result<(), Error> {
        Streams::output(self.output.is_none() && self.pcap.is_none()).check()?;
        if self.list {
            return library::list();
        }
        // The files may belong to another user.
        strait_os::process::drop_capabilities_except(&[CAP_DAC_OVERRIDE])?;
        if self.index {
            return index::write(&self.arguments());
        }
        let (sql, files) = self.sql_and_files()?;
        self.refuse_own_input(&files)?;
        self.refuse_compressed_name()?;
        let engine = Engine::new(Sources::find(&files)?, self.limits())?;
        let interrupt = Interrupt::on_signals()?;
        let result = on_large_stack(|| {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            let runtime = builder.enable_all().thread_stack_size(STACK_BYTES).build();
            let runtime = runtime.map_err(|error| Error::failed(format!("start threads: {error}")))?;
            let result = match &self.pcap {
                Some(path) => runtime.block_on(select((&engine, interrupt), &sql, path, &self.from)),
                None => runtime.block_on(run((&engine, interrupt), &sql, &self.form())),
            };
            if interrupt.is_set() {
                // The threads remove their temporary files.
                runtime.shutdown_timeout(SHUTDOWN_MAX);
            } else {
                // A thread may still read a file of which the query needs no more rows.
                runtime.shutdown_background();
            }
            result
        });
        let defects = engine.defects().take();
        report_missed(&defects);
        report_extent(&defects);
        result.and(unread(&defects))
    }

    /// Returns the query and its files. With --run, the first argument is a file too.
    fn sql_and_files(&self) -> Result<(String, Vec<String>), Error> {
        let Some(name) = &self.run else {
            let usage = || Error::usage("give a query in SQL, or --run NAME; --list shows names");
            return Ok((self.sql.clone().ok_or_else(usage)?, self.files.clone()));
        };
        let files = self.arguments();
        if files.is_empty() {
            return Err(Error::usage(format!("--run {name}: give capture files, or a directory of tables")));
        }
        Ok((library::find(name)?.sql.to_owned(), files))
    }

    /// Returns an error if the result would replace a file from which it comes.
    fn refuse_own_input(&self, files: &[String]) -> Result<(), Error> {
        let outputs = [("--output", &self.output), ("--pcap", &self.pcap)];
        for (option, path) in outputs.into_iter().filter_map(|(option, path)| Some((option, path.as_ref()?)))
        {
            if let Some(file) = files.iter().chain(&self.from).find(|file| is_same_file(path, file.as_ref()))
            {
                return Err(Error::usage(format!("{option} would replace {file}: write to another file")));
            }
        }
        Ok(())
    }

    /// Returns an error if --pcap names a compressed file: its packets are written as they are.
    fn refuse_compressed_name(&self) -> Result<(), Error> {
        let Some(path) = &self.pcap else { return Ok(()) };
        let is_other = |ending: &std::ffi::OsStr| {
            OTHER_COMPRESSIONS.iter().any(|other| ending.eq_ignore_ascii_case(other))
        };
        if Compression::of_name(path).is_none() && !path.extension().is_some_and(is_other) {
            return Ok(());
        }
        Err(Error::usage(format!(
            "--pcap writes no compressed file: give {} a name in .pcapng, and compress it afterwards",
            path.display()
        )))
    }

    /// Returns all arguments, if none of them is SQL.
    fn arguments(&self) -> Vec<String> {
        self.sql.iter().chain(&self.files).cloned().collect()
    }

    fn limits(&self) -> Limits {
        Limits { memory_bytes: self.memory, spill_bytes: self.spill }
    }

    fn form(&self) -> Form {
        match &self.output {
            Some(path) => Form::Parquet(path.clone()),
            None if self.csv => Form::Csv,
            None if self.json => Form::Json,
            None => Form::Table,
        }
    }
}

/// Calls a function on a thread with a large stack: the planner needs some for each term of an
/// expression.
fn on_large_stack(run: impl FnOnce() -> Result<(), Error> + Send) -> Result<(), Error> {
    let failed = |error: std::io::Error| Error::failed(format!("start a thread: {error}"));
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, run);
        thread.map_err(failed)?.join().unwrap_or_else(|_| {
            Err(Error::failed("the query panicked: this is a defect of strait-query, please report it"))
        })
    })
}

/// Runs a query and writes its rows.
async fn run((engine, interrupt): (&Engine, Interrupt), sql: &str, form: &Form) -> Result<(), Error> {
    let mut rows = interrupt.or(engine.query(sql)).await??;
    let mut output = Output::open(form, &rows.schema())?;
    while let Some(batch) = interrupt.or(rows.next()).await? {
        output.write(&batch.map_err(|error| error::of_query(&error))?)?;
    }
    output.finish()
}

/// Runs a query and writes the packets of its rows, from the capture files `from`, or if there are
/// none from those of the query.
async fn select(
    (engine, interrupt): (&Engine, Interrupt),
    sql: &str,
    path: &Path,
    from: &[String],
) -> Result<(), Error> {
    let usage = || Error::usage("--pcap: give the capture files of the packets by --from FILE");
    let files = if from.is_empty() { engine.captures().ok_or_else(usage)? } else { from };
    let mut rows = interrupt.or(engine.query(sql)).await??;
    let mut selection = Selection::default();
    while let Some(batch) = interrupt.or(rows.next()).await? {
        selection.add(&batch.map_err(|error| error::of_query(&error))?)?;
    }
    selection.close();
    let retrieved = retrieve::write((path, interrupt), files, &selection, engine.defects())?;
    report_retrieved(path, &retrieved);
    Ok(())
}

/// Reports the packets that were written, and the parts of files that were read for them.
fn report_retrieved(path: &Path, retrieved: &Retrieved) {
    let Retrieved { packets, extent, whole, first_whole, can_index } = retrieved;
    let parts = match extent.parts {
        0 => String::new(),
        parts => format!("; of the indexed files {} of {parts} parts were read", extent.read),
    };
    warn(format_args!("wrote {packets} packets to {}{parts}\n", path.display()));
    let others = match whole {
        0 => return,
        1 => String::new(),
        more => format!(", and {} more files", more - 1),
    };
    let advice = if *can_index { "; strait query --index FILE writes an index" } else { "" };
    warn(format_args!("note: read completely: {first_whole}{others}{advice}\n"));
}

/// Reports messages that a table should have, and has not.
fn report_missed(defects: &Defects) {
    let causes = defects.missed().named().into_iter().filter(|(_, count)| *count > 0);
    let causes: Vec<String> = causes.map(|(cause, count)| format!("{cause} {count}")).collect();
    if !causes.is_empty() {
        warn(format_args!("note: messages are missing in the table: {}\n", causes.join(", ")));
    }
}

/// Reports the parts of indexed files that the query has read, and an index that it has not used.
fn report_extent(defects: &Defects) {
    let Extent { parts, read, bytes, read_bytes } = defects.extent();
    if read < parts {
        warn(format_args!(
            "note: of the indexed files {read} of {parts} parts were read, {read_bytes} of {bytes} bytes\n"
        ));
    }
    if let Some(reason) = defects.first_whole() {
        warn(format_args!("note: read completely: {reason}\n"));
    }
}

/// Returns the failure to read files to their end.
fn unread(defects: &Defects) -> Result<(), Error> {
    let (failures, more) = defects.unread();
    let Some((last, others)) = failures.split_last() else { return Ok(()) };
    for failure in others {
        warn(format_args!("{failure}\n"));
    }
    let more = if more > 0 { format!("; {more} more files have defects") } else { String::new() };
    Err(Error::failed(format!("{last}; the result has the packets before it{more}")))
}

fn main() -> ExitCode {
    strait_program::main(&Line::command(), |line: Line| line.run())
}
