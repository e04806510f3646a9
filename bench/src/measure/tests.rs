//! Points with the C peers on a real wire; Strait's own programs have their tests elsewhere.

use std::path::Path;
use std::sync::OnceLock;

use super::*;
use crate::child::Program;
use crate::contestants;

const SECONDS: f64 = 0.2;

/// Returns a wire and the compiled peers; None after SKIP if they are unavailable.
fn rig() -> Option<(Wire, &'static Tools)> {
    static TOOLS: OnceLock<Tools> = OnceLock::new();
    if !lab::root_or_skip() || !lab::program_or_skip("cc") {
        return None;
    }
    let tools = TOOLS.get_or_init(|| Tools::build(Some(Path::new("strait"))).unwrap());
    Some((plain_wire().unwrap(), tools))
}

#[test]
fn point_counts_sent_and_received_packets() {
    let Some((wire, tools)) = rig() else { return };
    let generator = contestants::send_in_c(tools, 64, true, SECONDS);
    for receiver in [contestants::packet_socket(tools, true), contestants::stock_delays(tools, true)] {
        let figures = point(tools, &wire, &receiver, &generator, SECONDS).unwrap();
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
    let Some((wire, tools)) = rig() else { return };
    let generator = contestants::send_in_c(tools, 1, true, SECONDS);
    let receiver = contestants::stock_delays(tools, true);
    let figures = point(tools, &wire, &receiver, &generator, SECONDS).unwrap();
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
    let Some((wire, tools)) = rig() else { return };
    let generator = contestants::send_at_times(tools, 4, 20, SECONDS);
    let figures = generator_alone(tools, &wire, &generator, SECONDS).unwrap();
    // Every call sends 4 frames, followed by a pause of at least 1 ms.
    let (frames, calls_max) = (figures["offered_packets"], SECONDS * 1e3 + 1.0);
    assert!((4.0..=calls_max * 4.0).contains(&frames) && frames % 4.0 == 0.0, "{figures:?}");
}

#[test]
fn failed_receiver_is_a_failed_point_with_its_output() {
    let Some((wire, tools)) = rig() else { return };
    let mut receiver = contestants::packet_socket(tools, false);
    receiver.program.arguments = vec!["-i".into(), "nothing".into()];
    receiver.ready = Ready::PacketSocket;
    let generator = contestants::send_in_c(tools, 64, false, SECONDS);
    let error = point(tools, &wire, &receiver, &generator, SECONDS).unwrap_err().to_string();
    assert!(error.contains("afpacket_recv -i nothing failed") && error.contains("No such device"), "{error}");
}

#[test]
fn program_is_killed_at_its_time_limit() {
    let Some((wire, tools)) = rig() else { return };
    let program = Program::new("sleep", &["1000"]);
    let child = Child::start(tools, wire.left(), &program, 0, Duration::from_secs(1)).unwrap();
    let error = child.wait(Duration::from_secs(1)).unwrap_err().to_string();
    assert!(error.contains("sleep 1000") && error.contains("killed at its time limit"), "{error}");
}
