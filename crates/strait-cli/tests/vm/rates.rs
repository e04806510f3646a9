//! Highest rates at which receivers lose no frame, by frame size: D1's Figure 5, as far as an
//! emulated machine shows it.
//!
//! The guest's clock is the host's. The emulation of a frame takes longer than its reception by
//! most receivers, which limits the rate of the sender, and QEMU holds up to 10,000 frames for a
//! NIC without a free descriptor. So the figures mean something only in comparison with each other
//! and on a quiet host, and nothing asserts them. The module's documentation has the command.

use std::collections::BTreeMap;
use std::env;
use std::fmt::Write as _;
use std::time::Duration;

use lab::vm::{Nic, vm_or_skip};
use lab::{program_or_skip, skip};
use strait_bench::machine::Machine;
use strait_bench::results::Results;

use super::cost::{CHECK_SEQUENCE_BYTES, Contestant, LIBPCAP, V3, XDP_ZERO_COPY, ZERO_COPY};
use super::peers::{KERNEL, guest_with_peers};
use super::record::{RECORD, write};
use super::run;

/// Environment variable that requests the measurement.
const RATES: &str = "STRAIT_VM_RATES";
/// Sizes of frames including the check sequence.
const SIZES: [u32; 3] = [64, 512, 1518];
/// For the sender and the receiver.
const PROCESSORS: u32 = 2;
const GUEST_LIMIT: Duration = Duration::from_mins(10);
const ABOUT: &str = "Highest rate of frames, in bursts of 128, that a receiver takes from an emulated igb without losing one of \
    66,560. The rates are those that the emulated sender reaches, and fall by a factor of about 1.4; each is tried twice at most. \
    QEMU without KVM holds up to 10,000 frames outside the NIC, and the emulation of a frame costs more than its reception by most \
    receivers.";

/// Highest rates without a loss, in frames per second, by size.
type Rates = BTreeMap<u32, f64>;

/// Returns the loss-free rates of a contestant, and prints a line for each attempt.
fn measure((name, command): Contestant, take: &str) -> Rates {
    let mut script = format!("prepare_pump 4\nethtool -G eth1 rx 4096 2>ethtool.err || true\n{take}\n");
    for size in SIZES {
        writeln!(script, "find_rate '{command}' {}", size - CHECK_SEQUENCE_BYTES)
            .expect("writing to a String cannot fail");
    }
    let run = run(guest_with_peers(Nic::Igb).processors(PROCESSORS).limit(GUEST_LIMIT), &script);
    let mut rates = Rates::new();
    for line in run.output.lines().filter_map(|line| line.strip_prefix("rate ")) {
        let numbers: Vec<u32> = line.split(' ').map(|number| number.parse().unwrap()).collect();
        let [bytes, sent, received, timed, us] = numbers[..] else { panic!("the rig printed {line}") };
        let (size, pps) = (bytes + CHECK_SEQUENCE_BYTES, f64::from(timed) / f64::from(us) * 1e6);
        println!("{name}, {size} bytes, {pps:.0} frames/s: {received} of {sent} received");
        if sent == received {
            let highest = rates.entry(size).or_insert(pps);
            *highest = highest.max(pps);
        }
    }
    rates
}

fn results(commit: String, rates: &BTreeMap<&str, Rates>) -> Results {
    let command = format!("{RECORD}=COMMIT scripts/test-vm programs rates");
    let machine = Machine::detect(command, commit, format!("strait {}", env!("CARGO_PKG_VERSION")));
    let mut results = Results {
        benchmark: "lossfree igb in QEMU".to_owned(),
        about: ABOUT.to_owned(),
        axis: "frame size, bytes".to_owned(),
        labels: SIZES.map(|size| size.to_string()).into(),
        machine: Machine {
            kernel: format!("Linux {} in QEMU", KERNEL.version()),
            cpus: PROCESSORS,
            ..machine
        },
        complete: true,
        rounds: 1,
        ..Results::default()
    };
    for (name, rates) in rates {
        for (place, size) in SIZES.iter().enumerate() {
            // No rate was free of losses: the receiver has no point at this size.
            let Some(pps) = rates.get(size) else { continue };
            let figures = [("lossfree_pps".to_owned(), pps.round())].into();
            results.record(name, place as f64, Ok((figures, String::new())));
        }
    }
    results
}

#[test]
fn igb() {
    if env::var_os(RATES).is_none() {
        skip(format!("rates need a machine that does nothing else: {RATES}=1 measures them"));
        return;
    }
    if !vm_or_skip() || !program_or_skip("cc") {
        return;
    }
    let contestants = [(LIBPCAP, ""), (V3, ""), (XDP_ZERO_COPY, ""), (ZERO_COPY, "take_for_zerocopy")];
    let rates = contestants.map(|(contestant, take)| (contestant.0, measure(contestant, take))).into();
    if let Ok(commit) = env::var(RECORD) {
        write("lab-rates", &results(commit, &rates));
    }
}
