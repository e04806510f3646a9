//! Points of claims with the C peers on a real wire.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use strait_bench::child::Program;
use strait_bench::claims::Context;
use strait_bench::claims::measure::{generator_alone, plain_wire, point};
use strait_bench::claims::peers::Peers;
use strait_bench::claims::programs::{self, Ready};
use strait_bench::machine::Machine;
use strait_bench::wire::Wire;

use crate::rig::launcher;

const SECONDS: f64 = 0.2;
static TERMINATED: AtomicBool = AtomicBool::new(false);

/// Returns a wire and the compiled peers; None after SKIP if they are unavailable.
fn rig() -> Option<(Wire, Context<'static>)> {
    if !lab::root_or_skip() || !lab::program_or_skip("cc") {
        return None;
    }
    let context = Context {
        launcher: launcher(),
        peers: Peers::compile().unwrap(),
        machine: Machine::default(),
        rounds: 1,
        seconds: SECONDS,
        only: None,
        disk: std::env::temp_dir(),
        terminated: &TERMINATED,
    };
    Some((plain_wire().unwrap(), context))
}

#[test]
fn point_counts_sent_and_received_packets() {
    let Some((wire, context)) = rig() else { return };
    let generator = programs::send_in_c(&context, 64, true, SECONDS);
    for receiver in [programs::packet_socket(&context, true), programs::stock_delays(&context, true)] {
        let figures = point(&context.launcher, &wire, &receiver, &generator, SECONDS).unwrap();
        let (offered, delivered) = (figures["offered_packets"], figures["delivered_packets"]);
        assert!(offered >= delivered && delivered > 0.0, "{figures:?}");
        assert!(figures["arrived_packets"] <= offered, "{figures:?}");
        assert!(figures["cpu_s"] > 0.0 && figures["cpu_total_s"] >= figures["cpu_s"], "{figures:?}");
        let loss = (offered - delivered) * 100.0 / offered;
        assert!((figures["loss_percent"] - loss).abs() < 1e-9, "{figures:?}");
    }
}

#[test]
fn delays_are_measured_from_the_stamp() {
    let Some((wire, context)) = rig() else { return };
    let generator = programs::send_in_c(&context, 1, true, SECONDS);
    let receiver = programs::stock_delays(&context, true);
    let figures = point(&context.launcher, &wire, &receiver, &generator, SECONDS).unwrap();
    assert!(figures["p50_us"] > 0.0 && figures["p50_us"] <= figures["p99_us"], "{figures:?}");
    assert!(figures["p99_us"] <= figures["max_us"] && figures["max_us"] < 60e6, "{figures:?}");
    // The kernel stamps a packet later than the generator.
    assert!(
        figures["captured_max_us"] > 0.0 && figures["captured_p50_us"] < figures["p50_us"],
        "{figures:?}"
    );
}

#[test]
fn quiet_line_pauses_between_bursts() {
    let Some((wire, context)) = rig() else { return };
    let generator = programs::send_at_times(&context, 4, 20, SECONDS);
    let figures = generator_alone(&context.launcher, &wire, &generator, SECONDS).unwrap();
    // Every call sends 4 frames, followed by a pause of at least 1 ms.
    let (frames, calls_max) = (figures["offered_packets"], SECONDS * 1e3 + 1.0);
    assert!((4.0..=calls_max * 4.0).contains(&frames) && frames % 4.0 == 0.0, "{figures:?}");
}

#[test]
fn failed_receiver_is_a_failed_point_with_its_output() {
    let Some((wire, context)) = rig() else { return };
    let mut receiver = programs::packet_socket(&context, false);
    receiver.program = context.peers.program("afpacket_recv", ["-i", "nothing"]);
    receiver.ready = Ready::PacketSocket;
    let generator = programs::send_in_c(&context, 64, false, SECONDS);
    let error = point(&context.launcher, &wire, &receiver, &generator, SECONDS).unwrap_err().to_string();
    assert!(error.contains("afpacket_recv -i nothing") && error.contains("No such device"), "{error}");
}

#[test]
fn program_is_killed_at_its_time_limit() {
    let Some((wire, context)) = rig() else { return };
    let program = Program::new("sleep", ["1000"]);
    let child = context.launcher.start(wire.sender(), &program, &[0], Duration::from_secs(1)).unwrap();
    let error = child.finish(Duration::from_secs(20)).unwrap_err().to_string();
    assert!(error.contains("sleep 1000") && error.contains("killed at its time limit"), "{error}");
}
