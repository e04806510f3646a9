//! The committed costs of a frame, and their comparison with new measurements.

use std::env;
use std::path::{Path, PathBuf};
use std::slice;

use lab::vm::Nic;
use strait_bench::machine::Machine;
use strait_bench::report;
use strait_bench::results::{Figures, Results, write_file};

use super::cost::{Axis, Cost, Costs, LIBPCAP, Plan, measure, print};
use super::peers::KERNEL;

/// Environment variable with a commit: if it is set, the figures are recorded for that commit and
/// not compared.
pub(super) const RECORD: &str = "STRAIT_VM_RECORD";

/// Measurements of a cost before it counts as higher than the recorded one.
const MEASUREMENTS_MAX: usize = 3;

const ABOUT: &str = "Guest instructions per received frame, in the kernel and in the program; the instructions of the sender are \
    subtracted. QEMU without KVM. Instructions are not time: caches, DMA and the NIC's registers cost nothing here.";

/// Instructions per frame of the kernel's own work, which falls into a measurement or not: some
/// 40,000, shared by the 10,000 frames of a comparison.
const BACKGROUND: f64 = 4.0;

impl Axis {
    /// Tolerated increase of a cost above the recorded figure, in percent. The processors of a
    /// guest take turns differently in each run, and a short burst shares the kernel's work in the
    /// pause after it among few frames.
    fn tolerance_percent(self) -> f64 {
        if matches!(self, Self::Size) { 5.0 } else { 10.0 }
    }

    /// Returns what is special about its results, and the name of the axis.
    fn describe(self) -> (&'static str, &'static str) {
        match self {
            Self::Size => ("Bursts of 1000 frames; sizes include the check sequence.", "frame size, bytes"),
            Self::Queues => {
                ("Bursts of 1000 frames of 64 bytes with the check sequence, of 32 flows.", "queues")
            }
            Self::Burst => ("Frames of 64 bytes with the check sequence.", "frames of a burst"),
        }
    }
}

/// Returns true if the figures are recorded, not compared.
pub(super) fn is_recording() -> bool {
    env::var_os(RECORD).is_some()
}

/// Measures `plans` in one guest, and compares the costs with the recorded ones, or records them.
/// Returns the costs of each plan.
pub(super) fn compare(nic: Nic, plans: &[Plan<'_>]) -> Vec<Costs> {
    let mut all = measure(nic, plans);
    for (plan, costs) in plans.iter().zip(&mut all) {
        print(plan.name, costs);
        if let Ok(commit) = env::var(RECORD) {
            write(&name(plan.name), &results(plan, commit, costs));
        } else {
            let measure_again = || measure(nic, slice::from_ref(plan)).swap_remove(0);
            assert_not_higher(plan.name, costs, |costs| find_higher(plan, costs), measure_again);
        }
    }
    all
}

/// Asserts that no cost is higher than the recorded one, as `find_higher` reports.
///
/// The kernel's own work falls into some measurements and not into others. A cost is therefore
/// only higher than before if it is so in each of [`MEASUREMENTS_MAX`], of which `costs` is the
/// first. It becomes the lowest of them.
pub(super) fn assert_not_higher(
    plan: &str,
    costs: &mut Costs,
    find_higher: impl Fn(&Costs) -> Vec<String>,
    measure_again: impl Fn() -> Costs,
) {
    let mut higher = find_higher(costs);
    for _ in 1..MEASUREMENTS_MAX {
        if higher.is_empty() {
            break;
        }
        println!("measured again, as these are higher than before:\n{}", higher.join("\n"));
        take_lower(costs, &measure_again());
        print(plan, costs);
        higher = find_higher(costs);
    }
    assert!(higher.is_empty(), "higher than before:\n{}", higher.join("\n"));
}

/// Replaces each of `costs` by that of `others` if the latter is lower.
fn take_lower(costs: &mut Costs, others: &Costs) {
    for (name, of_contestant) in costs {
        for (label, cost) in of_contestant {
            let other = others[name][label];
            if other.total() < cost.total() {
                *cost = other;
            }
        }
    }
}

/// Returns the name of the results of a plan.
pub(super) fn name(plan: &str) -> String {
    format!("instructions-{plan}")
}

fn file(name: &str, kind: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../bench/results/{name}.{kind}"))
}

/// Writes results and their plot to `bench/results`.
pub(super) fn write(name: &str, results: &Results) {
    let [record, plot] = ["json", "svg"].map(|kind| file(name, kind));
    write_file(&record, &format!("{}\n", results.to_json().unwrap())).unwrap();
    write_file(&plot, &report::image(results).unwrap()).unwrap();
}

/// Returns the description of a guest with so many processors.
pub(super) fn machine(commit: String, processors: u32) -> Machine {
    let command = format!("{RECORD}=COMMIT make test-vm");
    Machine {
        kernel: format!("Linux {} in QEMU", KERNEL.version()),
        cpu: "emulated".to_owned(),
        cpus: processors,
        ..Machine::detect(command, commit, format!("strait {}", env!("CARGO_PKG_VERSION")))
    }
}

fn results(&Plan { name, axis, .. }: &Plan<'_>, commit: String, costs: &Costs) -> Results {
    let (about, axis_name) = axis.describe();
    let mut results = Results {
        benchmark: format!("instructions {name}"),
        about: format!("{ABOUT} {about}"),
        axis: axis_name.to_owned(),
        labels: axis.labels(),
        machine: machine(commit, axis.processors()),
        complete: true,
        rounds: 1,
        ..Results::default()
    };
    for (name, of_contestant) in costs {
        for (place, size) in axis.labels().into_iter().enumerate() {
            let figures = figures(of_contestant[&size], costs[LIBPCAP.0][&size]);
            results.record(name, place as f64, Ok((figures, String::new())));
        }
    }
    results
}

fn figures(cost: Cost, libpcap: Cost) -> Figures {
    let mut figures = figures_of(cost);
    figures.insert("times_fewer".to_owned(), rounded(libpcap.total() / cost.total(), 100.0));
    figures
}

/// Returns the figures of a cost alone.
pub(super) fn figures_of(cost: Cost) -> Figures {
    let named = [
        ("instructions", cost.total()),
        ("kernel_instructions", cost.kernel),
        ("user_instructions", cost.user),
    ];
    named.into_iter().map(|(name, figure)| (name.to_owned(), rounded(figure, 10.0))).collect()
}

/// Rounds to tenths, if `decimals` is 10, or to hundredths.
pub(super) fn rounded(figure: f64, decimals: f64) -> f64 {
    (figure * decimals).round() / decimals
}

fn find_higher(plan: &Plan<'_>, costs: &Costs) -> Vec<String> {
    higher_than_recorded(plan.name, &plan.axis.labels(), plan.axis.tolerance_percent(), costs)
}

/// Returns a line for each cost that is higher than the recorded one by more than the tolerance.
pub(super) fn higher_than_recorded(
    plan: &str,
    labels: &[String],
    tolerance_percent: f64,
    costs: &Costs,
) -> Vec<String> {
    let known = Results::read(&file(&name(plan), "json")).unwrap();
    let mut higher = Vec::new();
    for (name, of_contestant) in costs {
        for (place, size) in labels.iter().enumerate() {
            let Some(now) = of_contestant.get(size).map(|cost| cost.total()) else { continue };
            let known = known.summary(name, place as f64, "instructions");
            let known = known.unwrap_or_else(|| panic!("{name} {size} is not recorded")).median;
            if now > known * (1.0 + tolerance_percent / 100.0) + BACKGROUND {
                higher.push(format!("{plan} {name} {size}: {now:.0} instructions, {known:.0} recorded"));
            }
        }
    }
    higher
}
