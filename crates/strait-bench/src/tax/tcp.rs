//! The host's own TCP during a capture: throughput of one connection, and round trips of one byte.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use strait_ledger::Histogram;
use strait_os::process;

use crate::child::parse;
use crate::contestant::Contestant;
use crate::error::{Error, Result};
use crate::measure::{Load, Rig, time_limit};
use crate::results::{Figures, figures};
use crate::send::far_end::{FarEnd, Takes};
use crate::send::transmit::Account;
use crate::wire::Wire;

/// Addresses of both ends (RFC 5737).
pub(super) const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)];
/// Bytes of a send.
const MESSAGE_BYTES: &str = "65536";
/// Seconds before the measurement, in which the connection's window opens.
const WARM_UP: &str = "0.2";
/// Limit of a round trip.
const ROUND_TRIP_MAX: Duration = Duration::from_secs(10);

/// Measures with a capture on the receiving end, or without one.
pub(super) fn measure(rig: &Rig<'_>, contestant: Option<Contestant>) -> Result<(Figures, String)> {
    let load = Load { size_bytes: 64, rate_pps: None, seconds: rig.seconds * 2.0, delay_of_each: 0 };
    let wire = rig.wires.of(1);
    let receiving = contestant.map(|contestant| rig.start(contestant, &load)).transpose()?;
    let cost = || receiving.as_ref().map(|receiving| receiving.child.cost()).transpose();
    let before = cost()?;
    let sent = throughput(rig, wire, time_limit(&load))?;
    let after = cost()?;
    let trips = round_trips(rig, wire)?;
    let mut measured = figures([
        ("tcp_bytes_per_s", sent.bytes as f64 / sent.seconds),
        ("p50_us", trips.p50_ns() as f64 / 1000.0),
        ("p99_us", trips.p99_ns() as f64 / 1000.0),
    ]);
    if let (Some(before), Some(after)) = (before, after) {
        let share = after.since(before).cpu.as_secs_f64() / sent.seconds;
        measured.insert("reader_percent".into(), share * 100.0);
    }
    let got = receiving.map(|receiving| receiving.finish(time_limit(&load))).transpose()?;
    Ok((measured, got.map(|account| account.got).unwrap_or_default()))
}

fn throughput(rig: &Rig<'_>, wire: &Wire, limit: Duration) -> Result<Account> {
    let address = SocketAddr::from((ADDRESSES[1], 0));
    let far_end = FarEnd::start(wire.receiver(), address, Takes::Reading, &rig.receiver_cpus)?;
    let (to, seconds) = (far_end.address().to_string(), rig.seconds.to_string());
    let arguments = ["transmit", "--to", &to, "--way", "send", "--body", MESSAGE_BYTES];
    let program = rig.launcher.own([&arguments[..], &["--seconds", &seconds, "--warm-up", WARM_UP]].concat());
    let sending = rig.launcher.start(wire.sender(), &program, &rig.generator_cpus, limit)?;
    let account: Account = parse(&program, &sending.finish(limit)?.stdout)?;
    if account.seconds <= 0.0 || account.bytes == 0 {
        return Err(Error::Invalid("the connection moved no bytes".into()));
    }
    Ok(account)
}

/// Sends a byte and waits for its echo, again and again.
fn round_trips(rig: &Rig<'_>, wire: &Wire) -> Result<Histogram> {
    let failed = |error| Error::file("exchange a byte", error);
    let listener = wire.receiver().run(|| TcpListener::bind((ADDRESSES[1], 0)))?.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            wire.sender().run(|| {
                process::pin_thread_to(&rig.generator_cpus)?;
                let stream = TcpStream::connect_timeout(&address, ROUND_TRIP_MAX).map_err(failed)?;
                exchange(stream, Duration::from_secs_f64(rig.seconds)).map_err(failed)
            })?
        });
        let echo = scope.spawn(|| {
            process::pin_thread_to(&rig.receiver_cpus)?;
            echo(&listener).map_err(failed)
        });
        let trips = client.join().map_err(|_| Error::Invalid("the client's thread died".into()));
        if !matches!(trips, Ok(Ok(_))) {
            // Ends the echo, which may still wait for the client.
            drop(wire.sender().run(|| TcpStream::connect_timeout(&address, ROUND_TRIP_MAX)));
        }
        echo.join().map_err(|_| Error::Invalid("the echo's thread died".into()))??;
        trips?
    })
}

fn exchange(mut stream: TcpStream, time: Duration) -> std::io::Result<Histogram> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(ROUND_TRIP_MAX))?;
    let (mut trips, began) = (Histogram::new(), Instant::now());
    while began.elapsed() < time {
        let sent = Instant::now();
        stream.write_all(&[1])?;
        stream.read_exact(&mut [0])?;
        trips.record(u64::try_from(sent.elapsed().as_nanos()).unwrap_or(u64::MAX));
    }
    Ok(trips)
}

/// Returns each byte of one connection until its end.
fn echo(listener: &TcpListener) -> std::io::Result<()> {
    let (mut stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    let mut byte = [0];
    while stream.read(&mut byte)? > 0 {
        stream.write_all(&byte)?;
    }
    Ok(())
}
