//! Costs of a frame from the wire to the program, in guest instructions.
//!
//! Every contestant gets bursts of frames from a NIC with almost no cost for the guest
//! (`lab/vm/pump.c`): bursts of [`BURST`] frames of each size, and bursts of each length of frames
//! of the smallest size. The cost of the sender is measured alone and subtracted. The figures of
//! two runs differ by about a percent, so that they can be compared with recorded figures
//! (`record.rs`).

use std::collections::BTreeMap;
use std::time::Duration;

use lab::vm::{Mark, Nic, vm_or_skip};
use lab::{program_or_skip, skip};

use super::peers::guest_with_peers;
use super::record::{compare, is_recording};
use super::run;

/// Frames of a burst, which fit in the NIC and in the rings of all contestants.
const BURST: u64 = 1000;
/// Number of measured bursts of that length.
const BURST_COUNT: u64 = 20;
/// Lengths of bursts, with the number of measured bursts of each.
const BURSTS: [(u64, u64); 4] = [(1, 800), (32, 300), (256, 40), (BURST, BURST_COUNT)];
/// A comparison needs less precision than a record: its part of the bursts.
const COMPARED_PART: u64 = 2;
/// Those that are compared with recorded figures: the costs of the other lie between.
const BURSTS_COMPARED: [u64; 3] = [1, 32, BURST];
/// Pause between two bursts, in which the slowest contestant can receive a burst at a nanosecond
/// per instruction.
const PAUSE_US: u64 = 20_000;
/// Sizes of frames including the check sequence.
const SIZES: [u32; 7] = [64, 128, 256, 512, 1024, 1280, 1518];
/// Those that are compared with recorded figures: the costs of the others lie between. The stock
/// driver of e1000 copies frames below the second.
const SIZES_COMPARED: [u32; 3] = [64, 256, 1518];
/// Numbers of queues, in a guest with [`PROCESSORS`]. With one queue two runs differed by 8 %, as
/// the scheduler places the program on the processor of the interrupt or on another one.
const QUEUES: [u32; 2] = [2, 4];
const PROCESSORS: u32 = 4;
/// Flows that the NIC spreads over its queues.
const FLOWS: usize = 32;
pub(super) const CHECK_SEQUENCE_BYTES: u32 = 4;
const GUEST_LIMIT: Duration = Duration::from_mins(20);

/// A receiver: its name, and its command on `$receiver`.
pub(super) type Contestant = (&'static str, &'static str);

/// No receiver, for the cost of the sender.
const NO_RECEIVER: Contestant = ("no receiver", "");
pub(super) const XDP_ZERO_COPY: Contestant = ("xdp-zc", "strait capture -i $receiver --json --path xdp-zc");
const XDP_NATIVE: Contestant = ("xdp-native", "strait capture -i $receiver --json --path xdp-native");
const XDP_GENERIC: Contestant = ("xdp-generic", "strait capture -i $receiver --json --path xdp-generic");
pub(super) const V3: Contestant = ("v3", "strait capture -i $receiver --json --path v3");
const V2: Contestant = ("v2", "strait capture -i $receiver --json --path v2");
const RECV: Contestant = ("recv", "strait capture -i $receiver --json --path recv");
pub(super) const ZERO_COPY: Contestant = ("zerocopy", "strait capture -i $receiver --json --path zerocopy");
/// With a filter that accepts all frames.
const ZERO_COPY_FILTER: Contestant =
    ("zerocopy, all accepted", "strait capture -i $receiver --json --path zerocopy ip");
/// Unmodified tcpdump on the zero-copy paths.
const TCPDUMP_XDP: Contestant =
    ("tcpdump on xdp-zc", "strait run --path xdp-zc -- tcpdump -Z root -i $receiver -w /dev/null");
const TCPDUMP_ZERO_COPY: Contestant =
    ("tcpdump on zerocopy", "strait run --path zerocopy -- tcpdump -Z root -i $receiver -w /dev/null");
const TCPDUMP: Contestant = ("tcpdump", "tcpdump -Z root -i $receiver -w /dev/null");
/// The system's libpcap: TPACKET_V3, or TPACKET_V2 in immediate mode.
pub(super) const LIBPCAP: Contestant = ("libpcap", "pcap_count -i $receiver");
const LIBPCAP_NANO: Contestant = ("libpcap, nanoseconds", "pcap_count -i $receiver -n");
/// The program of [`LIBPCAP`] on the zero-copy paths, with timestamps. A capture that only counts,
/// as above, has none on xdp-zc.
const PCAP_XDP: Contestant =
    ("libpcap program on xdp-zc", "strait run --path xdp-zc -- pcap_count -i $receiver");
const PCAP_ZERO_COPY: Contestant =
    ("libpcap program on zerocopy", "strait run --path zerocopy -- pcap_count -i $receiver");
const LIBPCAP_IMMEDIATE: Contestant = ("libpcap-immediate", "pcap_count -i $receiver -I");
const RECVFROM: Contestant = ("recvfrom", "afpacket_recv -i $receiver");

/// Readers that do nothing but count: alone, with D3's one copy, and with filters that accept or
/// reject all frames by their EtherType.
const BARE: Contestant = ("zerocopy, bare reader", "zerocopy_recv -i $receiver");
const BARE_COPY: Contestant = ("zerocopy, bare reader that copies", "zerocopy_recv -i $receiver -c");
const BARE_ACCEPT: Contestant = ("zerocopy, bare reader, all accepted", "zerocopy_recv -i $receiver -a");
const BARE_REJECT: Contestant = ("zerocopy, bare reader, all rejected", "zerocopy_recv -i $receiver -r");
/// A reader that waits for half of the ring, for a second at most, as [`LIBPCAP`] does.
const BARE_TIMEOUT: Contestant = ("zerocopy, bare reader, timeout", "zerocopy_recv -i $receiver -t");
/// A reader that polls, and the sleeps between its polls alone.
const BARE_POLL: Contestant = ("zerocopy, bare reader that polls", "zerocopy_recv -i $receiver -p");
const BARE_POLL_SLEEPS: Contestant = ("no receiver, sleeps of a poller", "zerocopy_recv -s");
const XDP_BARE: Contestant = ("xdp-zc, bare reader", "afxdp_recv -i $receiver");
const XDP_BARE_COPY: Contestant = ("xdp-zc, bare reader that copies", "afxdp_recv -i $receiver -c");
/// Readers with DPDK, which poll the NIC: alone, and with D3's one copy.
const DPDK: Contestant = ("dpdk, bare reader", "dpdk_recv -a $address");
const DPDK_COPY: Contestant = ("dpdk, bare reader that copies", "dpdk_recv -a $address -c");
/// DPDK's driver for AF_XDP sockets: the kernel drives the NIC.
const DPDK_XDP: Contestant = ("dpdk on AF_XDP, bare reader", "dpdk_recv -i $receiver");
/// Contestants that need access to the NIC without a driver.
const POLLERS: [Contestant; 2] = [DPDK, DPDK_COPY];
/// Contestants that need the module's driver.
const TAKERS: [Contestant; 11] = [
    PCAP_ZERO_COPY,
    ZERO_COPY,
    ZERO_COPY_FILTER,
    TCPDUMP_ZERO_COPY,
    BARE,
    BARE_COPY,
    BARE_ACCEPT,
    BARE_REJECT,
    BARE_TIMEOUT,
    BARE_POLL,
    BARE_POLL_SLEEPS,
];

/// Instructions per frame, in the kernel and in the program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cost {
    pub(super) kernel: f64,
    pub(super) user: f64,
}

impl Cost {
    fn between(from: Mark, to: Mark, frames: u64) -> Self {
        let per_frame = |from: u64, to: u64| (to - from) as f64 / frames as f64;
        Self { kernel: per_frame(from.kernel, to.kernel), user: per_frame(from.user, to.user) }
    }

    /// Only the polls that found frames: the rest is the processor's idle time.
    fn of_polls(from: Mark, to: Mark, frames: u64) -> Self {
        Self { kernel: 0.0, user: (to.taken - from.taken) as f64 / frames as f64 }
    }

    /// As [`Cost::of_polls`], and all instructions of the kernel.
    fn with_polls(from: Mark, to: Mark, frames: u64) -> Self {
        Self { kernel: Self::between(from, to, frames).kernel, ..Self::of_polls(from, to, frames) }
    }

    fn less(self, other: Self) -> Self {
        Self { kernel: self.kernel - other.kernel, user: self.user - other.user }
    }

    pub(super) fn total(self) -> f64 {
        self.kernel + self.user
    }
}

/// Costs by contestant and by the label of a load.
pub(super) type Costs = BTreeMap<&'static str, BTreeMap<String, Cost>>;

/// Load of a measurement.
struct Load {
    /// Point on the axis of a result: a frame size, or the length of a burst.
    label: String,
    burst: u64,
    bursts: u64,
    /// Sizes of the frames, without check sequence, as arguments of `pump`: one for each flow.
    bytes: String,
    /// Number of queues that the NIC gets before.
    queues: Option<u32>,
}

/// What varies between the measurements of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Axis {
    /// Frame size: each, and all at random.
    Size,
    /// Length of a burst.
    Burst,
    /// Number of queues, for bursts of [`BURST`] frames of [`FLOWS`] flows.
    Queues,
}

impl Axis {
    /// Returns the labels of its points in a record.
    pub(super) fn labels(self) -> Vec<String> {
        self.loads(true).into_iter().map(|load| load.label).collect()
    }

    /// Returns the number of processors of the guest.
    pub(super) fn processors(self) -> u32 {
        if self == Self::Queues { PROCESSORS } else { 1 }
    }

    /// Returns the loads for a record, or for a comparison with it.
    fn loads(self, recorded: bool) -> Vec<Load> {
        let bytes = |size: u32| (size - CHECK_SEQUENCE_BYTES).to_string();
        let count = |bursts: u64| if recorded { bursts } else { bursts / COMPARED_PART };
        match self {
            Self::Size => {
                let all = SIZES.map(bytes).join(" ");
                let load = |label: String, bytes| Load {
                    label,
                    burst: BURST,
                    bursts: count(BURST_COUNT),
                    bytes,
                    queues: None,
                };
                let sizes: &[u32] = if recorded { &SIZES } else { &SIZES_COMPARED };
                let each = sizes.iter().map(|&size| load(size.to_string(), bytes(size)));
                each.chain([load("random".to_owned(), all)]).collect()
            }
            Self::Burst => BURSTS
                .iter()
                .filter(|(burst, _)| recorded || BURSTS_COMPARED.contains(burst))
                .map(|&(burst, bursts)| Load {
                    label: burst.to_string(),
                    burst,
                    bursts: count(bursts),
                    bytes: bytes(SIZES[0]),
                    queues: None,
                })
                .collect(),
            Self::Queues => QUEUES
                .iter()
                .map(|&queues| Load {
                    label: queues.to_string(),
                    burst: BURST,
                    bursts: count(BURST_COUNT),
                    bytes: vec![bytes(SIZES[0]); FLOWS].join(" "),
                    queues: Some(queues),
                })
                .collect(),
        }
    }
}

/// Driver of the NIC of contestants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Driver {
    /// That of the kernel.
    Stock,
    /// The module pf_zerocopy.
    Module,
    /// None but the kernel's access for programs, such as those with DPDK.
    Uio,
}

impl Driver {
    fn of(contestant: Contestant) -> Self {
        match contestant {
            taker if TAKERS.contains(&taker) => Self::Module,
            poller if POLLERS.contains(&poller) => Self::Uio,
            _ => Self::Stock,
        }
    }

    /// Returns the script that binds the NIC to it.
    fn take(self) -> &'static str {
        match self {
            Self::Stock => "",
            Self::Module => "take_for_zerocopy\n",
            Self::Uio => "take_for_dpdk\n",
        }
    }
}

/// Computes the cost of a frame between two marks.
type Computation = fn(Mark, Mark, u64) -> Cost;

/// Contestants along an axis with the same driver and the same computation of costs.
struct Heat {
    axis: Axis,
    driver: Driver,
    /// Contestant whose cost is subtracted from those of the others. It is measured first.
    base: Option<Contestant>,
    contestants: Vec<Contestant>,
    compute: Computation,
}

impl Heat {
    fn all(&self) -> impl Iterator<Item = Contestant> {
        self.base.into_iter().chain(self.contestants.iter().copied())
    }
}

/// Measurement along an axis, and the name of its recorded costs.
pub(super) struct Plan<'a> {
    pub(super) name: &'static str,
    pub(super) axis: Axis,
    contestants: &'a [Contestant],
}

/// Returns the heats of `plans`, by driver.
fn heats(plans: &[Plan<'_>]) -> Vec<Heat> {
    let heats = |driver, base, compute: Computation, is_in: fn(Contestant) -> bool| {
        plans.iter().map(move |&Plan { axis, contestants, .. }| {
            let of_driver =
                contestants.iter().copied().filter(|one| Driver::of(*one) == driver && is_in(*one));
            Heat { axis, driver, base, contestants: of_driver.collect(), compute }
        })
    };
    heats(Driver::Stock, Some(NO_RECEIVER), Cost::between, |_| true)
        .chain(heats(Driver::Module, Some(NO_RECEIVER), Cost::between, |one| one != BARE_POLL))
        .chain(heats(Driver::Module, Some(BARE_POLL_SLEEPS), Cost::with_polls, |one| one == BARE_POLL))
        .chain(heats(Driver::Uio, None, Cost::of_polls, |_| true))
        .filter(|heat| !heat.contestants.is_empty())
        .collect()
}

/// Returns the script that measures the contestants of `heats` on eth1, or on zc0 if the module
/// drives it. Each of them runs once along an axis and receives all loads, or those of a number of
/// queues.
fn script(heats: &[Heat], recorded: bool) -> String {
    // DPDK needs more huge pages than the sender.
    let mut script = "
prepare_pump 64
echo 16777216 >/proc/sys/net/core/rmem_default
ethtool -G eth1 rx 4096 2>ethtool.err || true
# Without merging, frames are captured as on the wire and fit in the slots of the rings.
ethtool -K eth1 gro off gso off tso off
# The instructions of this kernel thread, which runs at random times, would be counted.
if grep kdamond /proc/[0-9]*/comm; then exit 1; fi
"
    .to_owned();
    let mut driver = None;
    for heat in heats {
        if driver != Some(heat.driver) {
            driver = Some(heat.driver);
            // The kernel still releases what the last receiver had.
            script.push_str("sleep 1\n");
            script.push_str(heat.driver.take());
            // The kernel's work after the boot and after the start of a NIC would be counted.
            script.push_str("up $receiver\nsleep 20\n");
        }
        let loads = heat.axis.loads(recorded);
        for contestant in heat.all() {
            for loads in loads.chunk_by(|one, next| one.queues == next.queues) {
                script.push_str(&receive(contestant, loads));
            }
            // QEMU keeps frames for a NIC without a receiver, and delivers them to the next one.
            if heat.driver == Driver::Module {
                script.push_str("read_kept\n");
            }
        }
    }
    script
}

/// Returns the script in which a contestant receives `loads`, of one number of queues.
fn receive((name, command): Contestant, loads: &[Load]) -> String {
    let mut lines = Vec::new();
    if let Some(queues) = loads[0].queues {
        lines.push(format!("queues {queues}"));
    }
    lines.push("up $receiver".to_owned());
    if !command.is_empty() {
        lines.push(format!("begin_receiver '{command}'"));
    }
    lines.extend(
        loads.iter().map(|Load { burst, bursts, bytes, .. }| {
            format!("send_pumped {bursts} {burst} {PAUSE_US} {bytes}")
        }),
    );
    if !command.is_empty() {
        let counter = match name {
            name if name == BARE_REJECT.0 => "filtered",
            name if name == BARE_POLL_SLEEPS.0 => "",
            _ => "delivered",
        };
        lines.push(format!("end_receiver '{name}' '{counter}'"));
    }
    lines.join("\n") + "\n"
}

/// Returns the costs of `plans`, which have the same number of processors, measured in one guest.
pub(super) fn measure(nic: Nic, plans: &[Plan<'_>]) -> Vec<Costs> {
    let guest = guest_with_peers(nic).processors(plans[0].axis.processors()).metered().limit(GUEST_LIMIT);
    let heats = heats(plans);
    let run = run(guest, &script(&heats, is_recording()));
    let mut pairs = run.marks.chunks_exact(2);
    let mut costs = vec![Costs::new(); plans.len()];
    for heat in &heats {
        let mut of_heat = Costs::new();
        for (name, _) in heat.all() {
            for load in heat.axis.loads(is_recording()) {
                let pair =
                    pairs.next().unwrap_or_else(|| panic!("too few marks: {}\n{}", run.output, run.log));
                let cost = (heat.compute)(pair[0], pair[1], load.burst * load.bursts);
                of_heat.entry(name).or_default().insert(load.label, cost);
            }
        }
        let plan = plans.iter().position(|plan| plan.axis == heat.axis).expect("a heat has a plan");
        costs[plan].extend(match heat.base {
            Some(base) => less(base, of_heat),
            None => of_heat,
        });
    }
    costs
}

/// Subtracts the cost of `base` from those of the others.
fn less(base: Contestant, mut costs: Costs) -> Costs {
    let base = costs.remove(base.0).expect("its cost was measured");
    for of_contestant in costs.values_mut() {
        for (label, cost) in of_contestant {
            *cost = cost.less(base[label]);
        }
    }
    costs
}

/// Prints a line for each contestant.
pub(super) fn print(nic: &str, costs: &Costs) {
    for (name, sizes) in costs {
        let cells: Vec<String> = sizes
            .iter()
            .map(|(size, cost)| {
                format!("{size}: {:.0} ({:.0} + {:.0})", cost.total(), cost.kernel, cost.user)
            })
            .collect();
        println!("{nic} {name}: {}", cells.join("  "));
    }
}

/// Returns the difference between the costs at the largest and the smallest size.
fn slope(costs: &Costs, name: &str) -> f64 {
    costs[name]["1518"].total() - costs[name]["64"].total()
}

/// Asserts that the cost does not depend on the length, as on a path without copies.
fn assert_independent_of_length(costs: &Costs, name: &str) {
    let slope = slope(costs, name);
    assert!(slope.abs() < 20.0, "{name}: {slope} instructions between 64 and 1518 bytes");
}

/// Asserts that the cost depends on the length, as on a path with copies.
fn assert_dependent_on_length(costs: &Costs, name: &str) {
    let slope = slope(costs, name);
    assert!(slope > 300.0, "{name}: {slope} instructions between 64 and 1518 bytes");
}

#[test]
fn igb() {
    if !vm_or_skip() || !program_or_skip("cc") {
        return;
    }
    let sizes = [
        XDP_ZERO_COPY,
        XDP_BARE,
        XDP_BARE_COPY,
        PCAP_XDP,
        TCPDUMP_XDP,
        XDP_NATIVE,
        V3,
        LIBPCAP,
        LIBPCAP_NANO,
        TCPDUMP,
        ZERO_COPY,
        ZERO_COPY_FILTER,
        PCAP_ZERO_COPY,
        BARE,
        BARE_COPY,
        BARE_ACCEPT,
        BARE_REJECT,
        DPDK,
        DPDK_COPY,
        DPDK_XDP,
    ];
    let bursts = [
        XDP_ZERO_COPY,
        XDP_BARE,
        LIBPCAP,
        LIBPCAP_IMMEDIATE,
        ZERO_COPY,
        BARE,
        BARE_TIMEOUT,
        BARE_REJECT,
        BARE_POLL,
        DPDK,
        DPDK_COPY,
        DPDK_XDP,
    ];
    let plans = [
        Plan { name: "igb", axis: Axis::Size, contestants: &sizes },
        Plan { name: "igb-bursts", axis: Axis::Burst, contestants: &bursts },
    ];
    let costs = &compare(Nic::Igb, &plans)[0];
    assert_independent_of_length(costs, "xdp-zc");
    assert_independent_of_length(costs, "zerocopy");
    assert_dependent_on_length(costs, "xdp-native");
    assert_dependent_on_length(costs, "libpcap");
}

#[test]
fn virtio_net() {
    if !vm_or_skip() || !program_or_skip("cc") {
        return;
    }
    let sizes = [XDP_ZERO_COPY, XDP_BARE, XDP_BARE_COPY, XDP_NATIVE, LIBPCAP, DPDK, DPDK_COPY];
    let plan = Plan { name: "virtio-net", axis: Axis::Size, contestants: &sizes };
    let costs = &compare(Nic::VirtioNet, &[plan])[0];
    assert_independent_of_length(costs, "xdp-zc");
    assert_dependent_on_length(costs, "xdp-native");
}

#[test]
fn e1000() {
    if !vm_or_skip() || !program_or_skip("cc") {
        return;
    }
    let sizes = [
        XDP_GENERIC,
        V3,
        V2,
        RECV,
        LIBPCAP,
        LIBPCAP_IMMEDIATE,
        RECVFROM,
        TCPDUMP,
        ZERO_COPY,
        ZERO_COPY_FILTER,
        TCPDUMP_ZERO_COPY,
        BARE,
        BARE_COPY,
        BARE_ACCEPT,
        BARE_REJECT,
        DPDK,
        DPDK_COPY,
    ];
    let bursts = [V3, LIBPCAP, LIBPCAP_IMMEDIATE, ZERO_COPY, BARE, BARE_TIMEOUT, DPDK, DPDK_COPY];
    let plans = [
        Plan { name: "e1000", axis: Axis::Size, contestants: &sizes },
        Plan { name: "e1000-bursts", axis: Axis::Burst, contestants: &bursts },
    ];
    let costs = &compare(Nic::E1000, &plans)[0];
    assert_independent_of_length(costs, "zerocopy");
    // Only xdp-generic: the stock driver copies frames below 256 bytes an additional time
    // (copybreak), so that the cost of packet sockets depends less on the length.
    assert_dependent_on_length(costs, "xdp-generic");
}

/// D3's other peers. `scripts/setup-vm` fetches sources from package registries only.
#[test]
fn peers_without_a_package() {
    skip("netmap has no row: no package of Debian and no other registry has its kernel module");
    skip("PF_RING has no row: no package of Debian and no other registry has its kernel module");
}

/// Without `xdp-zc`: its figures of two runs differed by 32 %.
#[test]
fn igb_queues() {
    if !vm_or_skip() || !program_or_skip("cc") {
        return;
    }
    let contestants = [V3, LIBPCAP, ZERO_COPY];
    compare(Nic::Igb, &[Plan { name: "igb-queues", axis: Axis::Queues, contestants: &contestants }]);
}
