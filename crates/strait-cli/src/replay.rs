//! `strait replay`: the packets of a capture file out of an interface, at their own pace, another, or none.

use std::sync::atomic::Ordering;

use clap::Args as ClapArgs;
use strait_capture::file::FileReader;
use strait_capture::{InjectPath, Injector};
use strait_sys::clock;

use crate::Error;
use crate::generate::print_account;
use crate::parse::Rate;

/// Options of `strait replay`.
#[derive(ClapArgs)]
pub(crate) struct Args {
    /// pcap or pcapng file with Ethernet frames
    file: String,
    /// Interface to send on
    #[arg(short = 'o', long, value_name = "IF")]
    output: String,
    /// Packets a second, or max, instead of the pace of the file
    #[arg(long, value_name = "PPS", conflicts_with = "speed")]
    rate: Option<Rate>,
    /// Pace of the file times this
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = speed)]
    speed: f64,
    /// How often to send the file
    #[arg(long = "loop", value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    times: u64,
    /// Print the account as one JSON object
    #[arg(long)]
    json: bool,
}

const LINKTYPE_ETHERNET: u32 = 1;

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Error> {
    if args.file == "-" && args.times > 1 {
        return Err(Error::Usage("standard input can be sent once only: leave --loop out".into()));
    }
    let terminated = strait_sys::process::on_termination()?;
    let mut injector = Injector::open(&args.output, InjectPath::Sendmmsg)?;
    let mut sequence = 0;
    let start_ns = clock::monotonic_ns();
    let mut failure = None;
    for _ in 0..args.times {
        if terminated.load(Ordering::Relaxed) || failure.is_some() {
            break;
        }
        failure = pass(args, &mut injector, &mut sequence, start_ns, terminated)?;
    }
    print_account(&injector.finish()?, args.json)?;
    failure.map_or(Ok(()), Err)
}

/// Sends the file once. A damaged file ends the pass; what came before the damage is sent, the damage returned.
fn pass(
    args: &Args,
    injector: &mut Injector,
    sequence: &mut u64,
    start_ns: u64,
    terminated: &std::sync::atomic::AtomicBool,
) -> Result<Option<Error>, Error> {
    let mut reader = FileReader::open(&args.file).map_err(strait_capture::Error::from)?;
    let mut first = None;
    let pass_start_ns = clock::monotonic_ns();
    while !terminated.load(Ordering::Relaxed) {
        let packet = match reader.next() {
            Ok(Some(packet)) => packet,
            Ok(None) => break,
            Err(error) => return Ok(Some(strait_capture::Error::from(error).into())),
        };
        if packet.link_type != LINKTYPE_ETHERNET {
            let link_type = packet.link_type;
            return Err(Error::Failed(format!("{}: link type {link_type} is not Ethernet", args.file)));
        }
        let due_ns = if let Some(rate) = args.rate {
            rate.due_ns(*sequence).map(|due_ns| start_ns + due_ns)
        } else {
            let since = packet.timestamp_ns.saturating_sub(*first.get_or_insert(packet.timestamp_ns));
            Some(pass_start_ns + (since as f64 / args.speed) as u64)
        };
        if let Some(due_ns) = due_ns {
            injector.wait_until(due_ns)?;
        }
        let bytes = packet.bytes;
        let buffer = injector.buffer()?;
        let len = bytes.len().min(buffer.len());
        buffer[..len].copy_from_slice(&bytes[..len]);
        injector.push(len);
        *sequence += 1;
    }
    Ok(None)
}

fn speed(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(speed) if speed > 0.0 && speed.is_finite() => Ok(speed),
        _ => Err(format!("'{text}': give a factor above 0")),
    }
}
