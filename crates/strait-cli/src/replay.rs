//! `strait replay`: sends the packets of a capture file on an interface, at the pace of the file,
//! at another pace, or at full speed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use clap::Args as ClapArgs;
use strait_capture::file::{Buffered, FileReader};
use strait_capture::{InjectPath, Injector};
use strait_os::clock;
use strait_packet::summary::link_type;
use strait_program::Streams;

use crate::Error;
use crate::generate::finish;
use crate::input;
use crate::output::print_account;
use crate::parse::Rate;

/// Options of `strait replay`.
#[derive(ClapArgs)]
pub(crate) struct Args {
    /// pcap or pcapng file with Ethernet frames, also compressed by zstd, gzip or lz4
    file: String,
    /// Interface to send on
    #[arg(short = 'o', long, value_name = "IF")]
    output: String,
    /// Packets per second, or max, instead of the pace of the file
    #[arg(long, value_name = "PPS", conflicts_with = "speed")]
    rate: Option<Rate>,
    /// Factor for the pace of the file
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = speed)]
    speed: f64,
    /// Number of times to send the file
    #[arg(long = "loop", value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    times: u64,
    /// Print the account as one JSON object
    #[arg(long)]
    json: bool,
}

impl Args {
    /// The standard streams that carry data.
    pub(crate) fn streams(&self) -> Streams {
        Streams { input: self.file == "-", output: self.json }
    }
}

/// Interval at which a wait checks for a signal.
const TICK: Duration = Duration::from_millis(100);

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Error> {
    if args.file == "-" && args.times > 1 {
        return Err(Error::Usage("standard input can be sent only once: omit --loop".into()));
    }
    if !input::wait_until_readable(Some(&args.file))? {
        return Ok(());
    }
    let terminated = strait_os::process::on_termination()?;
    let mut reader = Some(open(&args.file)?);
    let injector = Injector::open(&args.output, InjectPath::Sendmmsg)?;
    let start_ns = clock::monotonic_ns();
    let mut replay = Replay { args, injector, terminated, start_ns, sequence: 0, too_long: 0 };
    let mut failure = None;
    for _ in 0..args.times {
        if terminated.load(Ordering::Relaxed) || failure.is_some() {
            break;
        }
        // Standard input can be opened only once; a file is opened for each pass.
        failure = reader.take().map_or_else(|| open(&args.file), Ok).and_then(|file| replay.pass(file)).err();
    }
    let (mut account, unsent) = finish(replay.injector);
    account.refused += replay.too_long;
    let failure = failure.or(unsent);
    if failure.is_none() || replay.sequence > 0 {
        print_account(&account, args.json)?;
    }
    failure.map_or(Ok(()), Err)
}

fn open(file: &str) -> Result<FileReader, Error> {
    Ok(FileReader::open(file).map_err(strait_capture::Error::from)?)
}

/// State of a replay.
struct Replay<'a> {
    args: &'a Args,
    injector: Injector,
    terminated: &'a AtomicBool,
    start_ns: u64,
    /// Packets sent so far in all passes.
    sequence: u64,
    /// Packets that exceed the injector's buffers.
    too_long: u64,
}

/// Start of one pass through the file.
struct Pass {
    start_ns: u64,
    /// Time of the first packet.
    first_ns: Option<u64>,
}

impl Replay<'_> {
    /// Sends the file once. A damaged file is sent up to the damage.
    fn pass(&mut self, mut reader: FileReader) -> Result<(), Error> {
        let mut pass = Pass { start_ns: clock::monotonic_ns(), first_ns: None };
        loop {
            match reader.try_fill().map_err(strait_capture::Error::from)? {
                Poll::Ready(true) if self.send_all(&mut pass, reader.buffered())? => {}
                Poll::Ready(_) => return Ok(()),
                Poll::Pending if self.terminated.load(Ordering::Relaxed) => return Ok(()),
                Poll::Pending => {
                    // A pipe without data: send the packets read so far.
                    self.injector.flush()?;
                    reader.wait(TICK).map_err(strait_capture::Error::from)?;
                }
            }
        }
    }

    /// Sends packets when they are due. Returns false if a signal arrived.
    fn send_all(&mut self, pass: &mut Pass, mut packets: Buffered<'_>) -> Result<bool, Error> {
        while let Some(packet) = packets.next().map_err(strait_capture::Error::from)? {
            if packet.link_type != u32::from(link_type::ETHERNET) {
                let (file, link_type) = (&self.args.file, packet.link_type);
                return Err(Error::Failed(format!("{file}: link type {link_type} is not Ethernet")));
            }
            let first_ns = *pass.first_ns.get_or_insert(packet.timestamp_ns);
            if !self.wait(pass.start_ns, packet.timestamp_ns.saturating_sub(first_ns))? {
                return Ok(false);
            }
            self.send(packet.bytes)?;
        }
        Ok(true)
    }

    /// Waits until a packet with a timestamp `since_ns` after the first is due. Returns false if a
    /// signal arrived.
    fn wait(&mut self, pass_start_ns: u64, since_ns: u64) -> Result<bool, Error> {
        let due_ns = match self.args.rate {
            Some(rate) => rate.due_ns(self.sequence).map_or(0, |due_ns| self.start_ns + due_ns),
            None => pass_start_ns.saturating_add((since_ns as f64 / self.args.speed) as u64),
        };
        while !self.terminated.load(Ordering::Relaxed) {
            let now_ns = clock::monotonic_ns();
            if now_ns >= due_ns {
                return Ok(true);
            }
            self.injector.wait_until(due_ns.min(now_ns + TICK.as_nanos() as u64))?;
        }
        Ok(false)
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.sequence += 1;
        match self.injector.buffer()?.get_mut(..bytes.len()) {
            Some(buffer) => {
                buffer.copy_from_slice(bytes);
                self.injector.push(bytes.len());
            }
            None => self.too_long += 1,
        }
        Ok(())
    }
}

fn speed(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(speed) if speed > 0.0 && speed.is_finite() => Ok(speed),
        _ => Err(format!("'{text}': give a factor above 0")),
    }
}
