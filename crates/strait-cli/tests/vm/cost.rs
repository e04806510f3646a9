//! What a frame costs on its way from the wire to the program, in guest instructions.
//!
//! Every contestant gets bursts of [`BURST`] frames from a NIC that costs the guest next to nothing
//! (`lab/vm/pump.c`); what the sender itself costs is measured alone and taken off. The figures are
//! the same to a percent or so in each run, so they are compared with those written down
//! (`record.rs`).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use lab::vm::{Guest, Kernel, Mark, Nic, vm_or_skip};
use lab::{compile, program_or_skip};

use super::record::compare;
use super::{guest, pf_zerocopy, run};

/// Frames of a burst: all contestants have room for as many, in the NIC and behind it.
const BURST: u64 = 1000;
/// Metered bursts.
const BURSTS: u64 = 20;
/// What lies between two bursts: long enough for the slowest to take one in, at a nanosecond an
/// instruction.
const PAUSE_US: u64 = 20_000;
/// Sizes of frames with their check sequence, as users give them; the NIC counts without.
const SIZES: [u32; 7] = [64, 128, 256, 512, 1024, 1280, 1518];
const CHECK_SEQUENCE_BYTES: u32 = 4;
const GUEST_LIMIT: Duration = Duration::from_mins(20);

/// A way to receive: how users name it, and the command that does it on `$receiver`.
type Contestant = (&'static str, &'static str);

const NOBODY: Contestant = ("nobody", "");
const XDP_ZERO_COPY: Contestant = ("xdp-zc", "strait capture -i $receiver --json --path xdp-zc");
const XDP_NATIVE: Contestant = ("xdp-native", "strait capture -i $receiver --json --path xdp-native");
const XDP_GENERIC: Contestant = ("xdp-generic", "strait capture -i $receiver --json --path xdp-generic");
const V3: Contestant = ("v3", "strait capture -i $receiver --json --path v3");
const V2: Contestant = ("v2", "strait capture -i $receiver --json --path v2");
const RECV: Contestant = ("recv", "strait capture -i $receiver --json --path recv");
const ZERO_COPY: Contestant = ("zerocopy", "strait capture -i $receiver --json --path zerocopy");
/// Unmodified, on the paths where nothing is copied.
const TCPDUMP_XDP: Contestant =
    ("tcpdump on xdp-zc", "strait run --path xdp-zc -- tcpdump -Z root -i $receiver -w /dev/null");
const TCPDUMP_ZERO_COPY: Contestant =
    ("tcpdump on zerocopy", "strait run --path zerocopy -- tcpdump -Z root -i $receiver -w /dev/null");
const TCPDUMP: Contestant = ("tcpdump", "tcpdump -Z root -i $receiver -w /dev/null");
/// libpcap as it comes: TPACKET_V3, or TPACKET_V2 in immediate mode.
pub(super) const LIBPCAP: Contestant = ("libpcap", "pcap_count -i $receiver");
const LIBPCAP_IMMEDIATE: Contestant = ("libpcap-immediate", "pcap_count -i $receiver -I");
const RECVFROM: Contestant = ("recvfrom", "afpacket_recv -i $receiver");

/// Instructions a frame, in the kernel and in the program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cost {
    pub(super) kernel: f64,
    pub(super) user: f64,
}

impl Cost {
    fn between(from: Mark, to: Mark) -> Self {
        let per_frame = |from: u64, to: u64| (to - from) as f64 / (BURST * BURSTS) as f64;
        Self { kernel: per_frame(from.kernel, to.kernel), user: per_frame(from.user, to.user) }
    }

    fn less(self, other: Self) -> Self {
        Self { kernel: self.kernel - other.kernel, user: self.user - other.user }
    }

    pub(super) fn total(self) -> f64 {
        self.kernel + self.user
    }
}

/// By contestant and size (`64`, ..., `random`).
pub(super) type Costs = BTreeMap<&'static str, BTreeMap<String, Cost>>;

/// What each contestant is metered with: a size, or all of them at random.
pub(super) fn sizes() -> impl Iterator<Item = String> {
    SIZES.iter().map(u32::to_string).chain(["random".to_owned()])
}

/// The script that meters `contestants` on eth1, or on zc0 where the module has it.
fn script(contestants: &[Contestant]) -> String {
    let mut script = "
pump=$(basename $(readlink /sys/class/net/eth0/device))
echo 4 >/proc/sys/vm/nr_hugepages
echo 16777216 >/proc/sys/net/core/rmem_default
ethtool -G eth1 rx 4096 2>ethtool.err || true
# Frames are captured as they were on the wire, and rings have slots for such.
ethtool -K eth1 gro off gso off tso off
# A thread that works at random times would be metered with a path.
if grep kdamond /proc/[0-9]*/comm; then exit 1; fi
"
    .to_owned();
    if contestants.contains(&ZERO_COPY) {
        script.push_str("take_for_zerocopy\n");
    }
    script.push_str(
        "[ ! -e /sys/bus/pci/drivers/e1000/$pump ] || echo $pump >/sys/bus/pci/drivers/e1000/unbind\n",
    );
    for (name, command) in contestants {
        for size in sizes() {
            let bytes = match size.parse::<u32>() {
                Ok(size) => (size - CHECK_SEQUENCE_BYTES).to_string(),
                Err(_) => SIZES.map(|size| (size - CHECK_SEQUENCE_BYTES).to_string()).join(" "),
            };
            let pumped = format!("$pump {BURSTS} {BURST} {PAUSE_US} {bytes}");
            writeln!(script, "meter '{name}' '{command}' {pumped}").expect("a String takes everything");
        }
    }
    script
}

/// What each of `contestants` costs, less what the sender does.
fn measure(guest: Guest, contestants: &[Contestant]) -> Costs {
    let all: Vec<Contestant> = [NOBODY].iter().chain(contestants).copied().collect();
    let run = run(guest.metered().limit(GUEST_LIMIT), &script(&all));
    let mut pairs = run.marks.chunks_exact(2).map(|pair| Cost::between(pair[0], pair[1]));
    let mut costs = Costs::new();
    for (name, _) in &all {
        for size in sizes() {
            let cost = pairs.next().unwrap_or_else(|| panic!("too few marks: {}\n{}", run.said, run.log));
            costs.entry(name).or_default().insert(size, cost);
        }
    }
    let sender = costs.remove(NOBODY.0).expect("it was metered");
    for of_contestant in costs.values_mut() {
        for (size, cost) in of_contestant {
            *cost = cost.less(sender[size]);
        }
    }
    costs
}

/// A guest with the programs that are compared.
fn peers(kernel: Kernel, first: Nic, second: Nic) -> Guest {
    let folder = tempfile::tempdir().unwrap();
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/peers");
    let mut guest = guest(kernel).wire(first, second);
    for (program, libraries) in [("pcap_count", &["-lpcap"][..]), ("afpacket_recv", &[])] {
        let output = folder.path().join(program);
        compile(&sources.join(format!("{program}.c")), libraries, &output);
        guest = guest.program(&output);
    }
    let drop_in = super::strait().with_file_name("libstrait_pcap.so");
    guest.program("/usr/sbin/ethtool").program("/usr/bin/tcpdump").program(drop_in)
}

fn print(nic: &str, costs: &Costs) {
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

/// The cost at the largest size less that at the smallest.
fn slope(costs: &Costs, name: &str) -> f64 {
    costs[name]["1518"].total() - costs[name]["64"].total()
}

/// What nobody copies costs the same at every length.
fn assert_independent_of_length(costs: &Costs, name: &str) {
    let slope = slope(costs, name);
    assert!(slope.abs() < 20.0, "{name}: {slope} instructions between 64 and 1518 bytes");
}

/// What is copied does not.
fn assert_dependent_on_length(costs: &Costs, name: &str) {
    let slope = slope(costs, name);
    assert!(slope > 300.0, "{name}: {slope} instructions between 64 and 1518 bytes");
}

#[test]
fn igb() {
    if !vm_or_skip() || !program_or_skip("cc") {
        return;
    }
    let guest = peers(Kernel::V7_2, Nic::E1000, Nic::Igb);
    let costs = measure(guest, &[XDP_ZERO_COPY, TCPDUMP_XDP, XDP_NATIVE, V3, LIBPCAP, TCPDUMP]);
    print("igb", &costs);
    assert_independent_of_length(&costs, "xdp-zc");
    assert_dependent_on_length(&costs, "xdp-native");
    assert_dependent_on_length(&costs, "libpcap");
    compare("igb", Kernel::V7_2, &costs);
}

#[test]
fn virtio_net() {
    if !vm_or_skip() || !program_or_skip("cc") {
        return;
    }
    let guest = peers(Kernel::V7_2, Nic::E1000, Nic::VirtioNet);
    let costs = measure(guest, &[XDP_ZERO_COPY, XDP_NATIVE, LIBPCAP]);
    print("virtio-net", &costs);
    assert_independent_of_length(&costs, "xdp-zc");
    assert_dependent_on_length(&costs, "xdp-native");
    compare("virtio-net", Kernel::V7_2, &costs);
}

#[test]
fn e1000() {
    if !vm_or_skip() || !program_or_skip("cc") {
        return;
    }
    let guest = peers(Kernel::V7_2, Nic::E1000, Nic::E1000);
    let copying = [XDP_GENERIC, V3, V2, RECV, LIBPCAP, LIBPCAP_IMMEDIATE, RECVFROM, TCPDUMP];
    let mut costs = measure(guest, &copying);
    let guest = pf_zerocopy::with_module(peers(Kernel::V7_2, Nic::E1000, Nic::E1000), Kernel::V7_2);
    costs.extend(measure(guest, &[ZERO_COPY, TCPDUMP_ZERO_COPY]));
    print("e1000", &costs);
    assert_independent_of_length(&costs, "zerocopy");
    // The stock driver copies frames below 256 bytes once more (copybreak), so packet sockets differ
    // less by length here.
    assert_dependent_on_length(&costs, "xdp-generic");
    compare("e1000", Kernel::V7_2, &costs);
}
