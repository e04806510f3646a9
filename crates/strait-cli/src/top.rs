//! `strait top`: live statistics of an interface, in the terminal or as a stream of JSON objects.
//!
//! One thread reads the lanes and counts ([`reader`], [`tally`]). Once per interval the main thread
//! merges the counts into the [`model`] and draws it ([`view`]). It also handles the keys.

mod keyboard;
mod model;
mod reader;
mod screen;
mod tally;
mod view;

use std::io::IsTerminal as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args as ClapArgs;
use ratatui::Terminal;
use rustix::io::Errno;
use strait_capture::{Path, Queues, Session, Wait};
use strait_program::Failure as _;

use self::keyboard::Keyboard;
use self::model::{Model, Reaction};
use self::reader::{Reader, Source};
use self::screen::{Modes, Screen};
use crate::capture::ChosenInterface;
use crate::parse::{path, seconds, wait};
use crate::{Error, namespace, output};

/// Interval at which keys and signals are checked.
const POLL: Duration = Duration::from_millis(50);

/// Options of `strait top`.
#[derive(ClapArgs)]
#[command(
    after_help = "Keys: q quits, p pauses, s sorts by another column, / sets a filter, arrows scroll, ? shows help.

Examples:
  strait top -i eth0
  strait top -i eth0 --json --interval 5 tcp port 443"
)]
pub(crate) struct Args {
    /// Interface to watch
    #[arg(short, long, value_name = "IF")]
    interface: Option<String>,
    #[command(flatten)]
    namespace: namespace::Args,
    /// Kernel path
    #[arg(short, long, value_parser = path(), default_value = Path::Auto.name())]
    path: Path,
    /// How to wait for packets
    #[arg(long, value_parser = wait(), default_value = Wait::Balanced.name())]
    wait: Wait,
    /// Receive queues or fanout members: 0,2,5-7, all, or default
    #[arg(long, value_name = "LIST")]
    queues: Option<Queues>,
    /// Seconds between updates
    #[arg(long, value_name = "S", value_parser = seconds, default_value = "1")]
    interval: Duration,
    /// Maximum flows in a JSON object; flow_count is the number of all flows
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    flows: u32,
    /// Report the process of each flow; uses the tap
    #[arg(long)]
    owner: bool,
    /// Print one JSON object per interval instead
    #[arg(long)]
    json: bool,
    /// Filter, see pcap-filter(7)
    #[arg(trailing_var_arg = true)]
    filter: Vec<String>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Error> {
    if !args.json && !std::io::stdout().is_terminal() {
        return Err(Error::Usage(
            "standard output is not a terminal: give --json for a stream of objects".into(),
        ));
    }
    args.namespace.enter()?;
    let filter = args.filter.join(" ");
    let ChosenInterface { name: interface, reason } = ChosenInterface::find(args.interface.as_deref())?;
    if let Some(reason) = reason {
        output::print_stderr(format_args!("strait: no -i given: {interface} is {reason}\n"));
    }
    let session = Session::builder(interface.clone())
        .path(args.path)
        .wait(args.wait)
        .queues(args.queues.clone().unwrap_or_default())
        .filter(filter.clone())
        .owners(args.owner)
        .open()?;
    // Only after open(): libpcap's compiler cannot check a flag, so until then a signal must end
    // the process by its default action.
    let terminated = strait_os::process::on_termination()?;
    let title = format!("{interface}, path {} ({})", session.path(), session.mode());
    let source = Source::new(session, &interface);
    // Dropped before the thread starts: it parses untrusted packets, and each thread has its own
    // capabilities.
    strait_os::process::drop_capabilities(false)?;
    let reader = Reader::start(source)?;
    let mut model = Model::new(title, filter);
    let watched = if args.json {
        stream(args, &reader, &mut model, terminated)
    } else {
        on_terminal(args, &reader, &mut model, terminated)
    };
    let (last, ended) = reader.finish();
    output::print_stderr(format_args!("{}", last.report));
    let failed = ended.is_err();
    let printed = if args.json && (failed || watched.is_ok()) {
        model.take(last);
        print_object(args, &model)
    } else {
        Ok(())
    };
    // If the capture ended by itself, `ended` has the cause; `watched` only reports the end.
    let result = ended.and(if failed { Ok(()) } else { watched }).and(printed);
    result.or_else(|error| if error.is_reader_gone() { Ok(()) } else { Err(error) })
}

/// Prints one JSON object per interval, until the end. After a delay of this process the next
/// interval is a whole one.
fn stream(args: &Args, reader: &Reader, model: &mut Model, terminated: &AtomicBool) -> Result<(), Error> {
    let mut next = Instant::now() + args.interval;
    while !terminated.load(Ordering::Relaxed) {
        strait_os::wait::sleep(POLL.min(next.saturating_duration_since(Instant::now())));
        if Instant::now() >= next || reader.has_ended() {
            model.take(reader.take()?);
            next = Instant::now() + args.interval;
            print_object(args, model)?;
        }
    }
    Ok(())
}

fn print_object(args: &Args, model: &Model) -> Result<(), Error> {
    Ok(output::print_line(&model.json(args.flows as usize).to_string())?)
}

/// Shows the picture, and then restores the terminal. A hang-up of the terminal ends it like `q`.
fn on_terminal(
    args: &Args,
    reader: &Reader,
    model: &mut Model,
    terminated: &AtomicBool,
) -> Result<(), Error> {
    let modes = Modes::save().map_err(Error::Output)?;
    let shown = modes.begin().map_err(Error::Output).and_then(|mut terminal| {
        let shown = match show(args, reader, model, &mut terminal, terminated) {
            Err(Error::Output(error)) if error.raw_os_error() == Some(Errno::IO.raw_os_error()) => {
                Ok(Ended::Gone)
            }
            shown => shown,
        };
        if matches!(shown, Ok(Ended::Gone)) {
            // Dropping it would show the cursor, and panic if the error cannot be printed.
            std::mem::forget(terminal);
        }
        shown
    });
    let restored = modes.restore().map_err(Error::Output);
    match shown? {
        Ended::Asked => restored,
        Ended::Gone => Ok(()),
    }
}

/// Cause of the end of the picture.
enum Ended {
    /// A key or a signal.
    Asked,
    /// The terminal hung up.
    Gone,
}

/// Draws the picture until the end, after each change: new counts, a key, another size.
fn show(
    args: &Args,
    reader: &Reader,
    model: &mut Model,
    terminal: &mut Terminal<Screen>,
    terminated: &AtomicBool,
) -> Result<Ended, Error> {
    let mut keyboard = Keyboard::open()?;
    let mut next = Instant::now() + args.interval;
    let (mut is_changed, mut size) = (true, terminal.size().map_err(Error::Output)?);
    while !terminated.load(Ordering::Relaxed) {
        if is_changed {
            terminal.draw(|frame| view::draw(frame, model)).map_err(Error::Output)?;
        }
        let timeout = POLL.min(next.saturating_duration_since(Instant::now()));
        let Some(keys) = keyboard.read(timeout)? else { return Ok(Ended::Gone) };
        is_changed = !keys.is_empty();
        for key in keys {
            match model.press(key) {
                Reaction::Quit => return Ok(Ended::Asked),
                Reaction::Filter(text) => model.set_filter(text.clone(), reader.set_filter(&text)),
                Reaction::None => {}
            }
        }
        let size_now = terminal.size().map_err(Error::Output)?;
        is_changed |= std::mem::replace(&mut size, size_now) != size_now;
        if Instant::now() >= next || reader.has_ended() {
            model.take(reader.take()?);
            next = Instant::now() + args.interval;
            is_changed |= !model.paused;
        }
    }
    Ok(Ended::Asked)
}
