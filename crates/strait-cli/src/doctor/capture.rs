//! What a capture gets here: privileges, memory, libpcap; and of an interface, see `link.rs` and `xdp.rs`.

use std::fs;

use rustix::process::{Resource, getrlimit};
use strait_sys::interface::Interface;
use strait_sys::netlink::{PacketRing, packet_socket};
use strait_sys::process::{self, CAP_BPF, CAP_IPC_LOCK, CAP_NET_ADMIN, CAP_NET_RAW, CAP_PERFMON};
use strait_sys::{Kind, libpcap, packet};

use super::finding::{Finding, Notebook};
use super::{Args, Face, link, xdp};
use crate::Error;

/// The kernel that all paths are written for.
const KERNEL_MIN: (u32, u32) = (5, 15);
/// What AF_XDP needs, and the verifier of its program.
const AF_XDP_NEEDS: [(u32, &str); 4] = [
    (CAP_NET_RAW, "CAP_NET_RAW"),
    (CAP_NET_ADMIN, "CAP_NET_ADMIN"),
    (CAP_BPF, "CAP_BPF"),
    (CAP_PERFMON, "CAP_PERFMON"),
];
/// Memory that one queue of AF_XDP takes unless told otherwise.
const UMEM_BYTES: u64 = 32 << 20;
/// What tcpdump asks of libpcap, and many programs with it.
const READ_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(1);
/// And its snaplen.
const SNAPLEN: u32 = 262_144;

pub(super) fn examine(
    interface: Option<&Interface>,
    args: &Args,
    findings: &mut Vec<Finding>,
) -> Result<(), Error> {
    let mut notebook = Notebook::new(Face::Capture, findings);
    kernel(&mut notebook);
    let raw = capabilities(&mut notebook)?;
    memlock(&mut notebook)?;
    fanout(&mut notebook);
    libpcap(&mut notebook, interface, raw);
    processor(&mut notebook);
    if let Some(interface) = interface {
        link::examine(interface, args, &mut notebook)?;
        xdp::examine(interface, args, &mut notebook)?;
    }
    Ok(())
}

fn kernel(notebook: &mut Notebook<'_>) {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers =
        release.split(|letter: char| !letter.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let (major, minor) = KERNEL_MIN;
    let fix = format!("boot Linux {major}.{minor} or newer");
    notebook.judge(version >= KERNEL_MIN, "kernel", format!("Linux {release}"), &fix);
}

/// Whether packet sockets may be opened.
fn capabilities(notebook: &mut Notebook<'_>) -> Result<bool, Error> {
    let has = |capability| process::has_capability(capability).map_err(Error::from);
    let raw = has(CAP_NET_RAW)?;
    if raw {
        notebook.ok("packet sockets", "CAP_NET_RAW: recv, v2 and v3 can be opened");
    } else {
        notebook.broken("packet sockets", "no CAP_NET_RAW: nothing can be captured", setcap("cap_net_raw"));
    }
    let mut missing = Vec::new();
    for (capability, name) in AF_XDP_NEEDS {
        if !has(capability)? {
            missing.push(name);
        }
    }
    if missing.is_empty() {
        notebook.ok("af_xdp privilege", "all that xdp needs is there");
    } else {
        let says = format!("no {}: xdp cannot be opened", missing.join(", "));
        notebook.better(
            "af_xdp privilege",
            says,
            setcap("cap_net_raw,cap_net_admin,cap_bpf,cap_perfmon,cap_ipc_lock"),
        );
    }
    Ok(raw)
}

fn setcap(capabilities: &str) -> String {
    let program = std::env::current_exe().map_or_else(|_| "strait".into(), |path| path.display().to_string());
    format!("run it as root, or: setcap {capabilities}+ep {program}")
}

fn memlock(notebook: &mut Notebook<'_>) -> Result<(), Error> {
    let limit = getrlimit(Resource::Memlock).current;
    let enough = limit.is_none_or(|bytes| bytes >= UMEM_BYTES);
    let says = match limit {
        None => "no limit of locked memory".to_owned(),
        Some(_) if process::has_capability(CAP_IPC_LOCK)? => {
            notebook.ok("locked memory", "CAP_IPC_LOCK: the limit of locked memory does not count");
            return Ok(());
        }
        Some(bytes) => {
            let (is, needs) = (bytes >> 10, UMEM_BYTES >> 10);
            format!("{is} KiB may be locked; a queue of AF_XDP takes {needs} KiB unless --ring says less")
        }
    };
    let fix = "ulimit -l unlimited (systemd: LimitMEMLOCK=infinity), or setcap cap_ipc_lock+ep";
    notebook.judge(enough, "locked memory", says, fix);
    Ok(())
}

/// Several sockets that share the packets of an interface.
fn fanout(notebook: &mut Notebook<'_>) {
    let probed = packet::Socket::open("lo").and_then(|socket| {
        let lo = Interface::find("lo")?;
        socket.bind(lo.index)?;
        socket.found_fanout(packet::Fanout::Hash)
    });
    match probed {
        Ok(_) => notebook.ok("fanout", "packet sockets can share an interface's packets (--queues)"),
        // Said already, or there is no loopback to ask.
        Err(error) if error.kind() == Kind::Refused || error.kind() == Kind::Usage => {}
        Err(error) => {
            notebook.better("fanout", format!("one lane only: {error}"), "ip link set lo up; strait doctor");
        }
    }
}

/// Which ring libpcap gives a program, and what that means for its delay: D2's question.
fn libpcap(notebook: &mut Notebook<'_>, interface: Option<&Interface>, raw: bool) {
    let version = match libpcap::version() {
        Ok(version) => version,
        Err(error) => {
            let says = format!("{error}: text filters and strait run need it");
            return notebook.better("libpcap", says, "apt-get install libpcap0.8");
        }
    };
    if !raw {
        return notebook
            .ok("libpcap", format!("{version}; its ring cannot be looked at without CAP_NET_RAW"));
    }
    let name = interface.map_or("lo", |interface| interface.name.as_str());
    // Nothing is changed for a look.
    let options =
        libpcap::Options { snaplen: SNAPLEN, timeout: READ_TIMEOUT, immediate: false, promiscuous: false };
    let looked = libpcap::Reader::open(name, options).and_then(|reader| packet_socket(reader.socket()));
    let socket = match looked {
        Ok(socket) => socket,
        Err(error) => {
            return notebook.ok("libpcap", format!("{version}; its ring cannot be looked at: {error}"));
        }
    };
    match (socket.version, socket.ring) {
        (3, Some(ring)) => {
            let PacketRing { block_bytes, blocks, retire, .. } = ring;
            let says = format!(
                "{version} uses TPACKET_V3 on {name}: {blocks} blocks of {} KiB, kept back for {} ms with tcpdump's read \
                 timeout: so late can a packet be",
                block_bytes >> 10,
                retire.as_millis()
            );
            notebook.better(
                "libpcap",
                says,
                "strait run -- PROGRAM (prompt and cheap), or the program's immediate mode",
            );
        }
        (version_used, Some(_)) => {
            let says = format!(
                "{version} uses TPACKET_V{version_used} on {name}: prompt, a wake-up for each packet"
            );
            notebook.better("libpcap", says, "strait run -- PROGRAM wakes less often");
        }
        (_, None) => {
            let says = format!("{version} uses no ring on {name}: a system call and a copy for each packet");
            notebook.better("libpcap", says, "strait run -- PROGRAM");
        }
    }
}

/// What makes a sleeping CPU slow to wake.
fn processor(notebook: &mut Notebook<'_>) {
    let read = |file: &str| fs::read_to_string(format!("/sys/devices/system/cpu/{file}")).ok();
    if let Some(governor) = read("cpu0/cpufreq/scaling_governor") {
        let governor = governor.trim();
        let says = format!("frequency governor {governor}");
        notebook.judge(
            governor == "performance",
            "cpu frequency",
            says,
            "cpupower frequency-set -g performance",
        );
    }
    let latencies = (0..16).map_while(|state| read(&format!("cpu0/cpuidle/state{state}/latency")));
    if let Some(deepest_us) = latencies.filter_map(|latency| latency.trim().parse::<u64>().ok()).max() {
        let says = format!("waking from the deepest idle state takes {deepest_us} us");
        notebook.judge(deepest_us <= 50, "cpu idle", says, "cpupower idle-set -D 50");
    }
}
