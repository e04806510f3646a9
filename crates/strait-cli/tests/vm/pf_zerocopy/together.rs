//! Scripts that share a guest, as most of them take less of the processor than a boot.
//!
//! The scripts of a machine run one after another, each in a folder of its own, and each begins
//! with the stock drivers and without the module. A script that fails does not end the others.

use std::collections::HashMap;
use std::sync::LazyLock;
use std::time::Duration;

use lab::vm::{Guest, Kernel, Nic, Run};

use super::access::{NAMESPACES, PRIVILEGE};
use super::device::{HANGING, SUSPEND};
use super::interrupts::INTERRUPTS;
use super::{
    FLAPS, KILLED, LINK_DOWN, NO_SLOT, REMOVED, SENT, UNCHANGED, checking_kernel, machines, pair_with,
    with_c_program,
};
use crate::{at_once, of};

/// Name and content of a script.
type Script = (&'static str, &'static str);

/// Scripts for every machine.
const SCRIPTS: [Script; 9] = [
    ("unchanged", UNCHANGED),
    ("sent", SENT),
    ("killed", KILLED),
    ("removed", REMOVED),
    ("link down", LINK_DOWN),
    ("flaps", FLAPS),
    ("interrupts", INTERRUPTS),
    ("suspend", SUSPEND),
    ("hanging", HANGING),
];
/// Scripts for machines with an e1000 only.
const E1000_SCRIPTS: [Script; 3] =
    [("namespaces", NAMESPACES), ("privilege", PRIVILEGE), ("no slot", NO_SLOT)];

/// Time limits of a guest with all scripts, without and with a checking kernel.
const LIMIT: Duration = Duration::from_mins(20);
const LIMIT_CHECKING: Duration = Duration::from_mins(90);
/// Lets a script write the NIC's registers by `devmem`.
const REGISTERS: &str = "iomem=relaxed";
/// What the rig prints before and after a script.
const START: &str = "script: start ";
const END: &str = "script: exit ";

/// A machine, and the runs of its scripts by name.
type Runs = ((Kernel, Nic), HashMap<String, Run>);

/// Returns the run of the script `name` on a machine of [`machines`]. The first call runs all
/// scripts of all machines.
///
/// Panics with the output if the script has failed.
pub(super) fn together(kernel: Kernel, nic: Nic, name: &str) -> Run {
    static RUNS: LazyLock<Vec<Runs>> = LazyLock::new(run_machines);
    let run = of(&RUNS, &(kernel, nic)).get(name);
    run.unwrap_or_else(|| panic!("{name} did not run: the guest ended before it")).clone().success()
}

/// Runs all scripts of all machines. Those with a checking kernel do not wait, and run one by one.
fn run_machines() -> Vec<Runs> {
    let machines = machines();
    let count = if checking_kernel().is_some() { 1 } else { machines.len() };
    machines.chunks(count).flat_map(|some| at_once(some, |(kernel, nic)| run_all(kernel, nic))).collect()
}

/// Runs all scripts of a machine.
fn run_all(kernel: Kernel, nic: Nic) -> HashMap<String, Run> {
    let mut scripts: Vec<Script> = SCRIPTS.into();
    if nic == Nic::E1000 {
        scripts.extend(E1000_SCRIPTS);
    }
    let limit = if kernel.is_checking() { LIMIT_CHECKING } else { LIMIT };
    let guest = with_c_program(pair_with(kernel, nic), "misuse").program("/usr/sbin/ethtool");
    let guest = guest.kernel_argument(REGISTERS).limit(limit);
    let guest = scripts.iter().fold(guest, |guest: Guest, (name, script)| {
        guest.file(&format!("/scripts/{name}"), format!(". /rig.sh\n{script}").as_bytes())
    });
    let names: Vec<String> = scripts.iter().map(|(name, _)| format!("'{name}'")).collect();
    let run = guest.run(&format!(". /rig.sh\nrun_together {}", names.join(" "))).unwrap();
    let runs = split(&run);
    // A guest that ends in a script has the output of those before it.
    assert!(!runs.is_empty(), "no script ran:\n{}\n{}", run.log, run.output);
    runs
}

/// Returns the run of each script from that of the guest.
fn split(all: &Run) -> HashMap<String, Run> {
    let mut runs = HashMap::new();
    for part in all.output.split(START).skip(1) {
        let (name, rest) = part.split_once('\n').expect("the rig ends its lines");
        let (output, after) = rest.rsplit_once(END).unwrap_or((rest, ""));
        let status = after.lines().next().and_then(|code| code.parse().ok());
        runs.insert(name.to_owned(), Run { output: output.to_owned(), status, ..all.clone() });
    }
    runs
}
