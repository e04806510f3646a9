//! Guest: its parts, and its run.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use strait_os::netns::Namespace;

use super::initramfs::Initramfs;
use super::kernel::Kernel;
use super::meter::{self, Counted, Mark};
use super::nic::Nic;
use super::parts;
use crate::{Error, Launch, Result};

const INIT: &str = include_str!("../../vm/init");
/// The kernel prints little, treats an oops or a warning as its end, and skips waits for missing
/// hardware.
const KERNEL_ARGUMENTS: &str = "console=ttyS0 quiet panic=-1 panic_on_warn=1 rdinit=/init mitigations=off tsc=reliable \
                                cryptomgr.notests nokaslr no_timer_check";
/// For a metered guest: DAMON samples memory accesses at random (mm/damon/stat.c, which Debian
/// enables in Linux 7.2). It costs up to a million instructions during a measurement, a different
/// number each time.
const NO_SAMPLING: &str = "damon_stat.enabled=0";
/// For a guest with several processors: the speed of loops that wait, here of a processor with
/// 3 GHz. To measure it, each processor counts between two ticks of a timer, which do not arrive in
/// time while the host is busy.
const LOOPS_PER_JIFFY: &str = "lpj=12000000";
const MEMORY_MIB: u32 = 1024;
/// Default time limit of a guest.
const LIMIT: Duration = Duration::from_mins(8);
/// Time limit of a guest with a checking kernel, which is ten times slower.
const LIMIT_CHECKING: Duration = Duration::from_mins(40);
/// Lines that [`INIT`] prints before and after the script.
const START: &str = "guest: start\n";
const END: &str = "guest: exit ";

/// Virtual machine for one run.
#[derive(Debug)]
pub struct Guest {
    kernel: Kernel,
    nics: Vec<Nic>,
    modules: BTreeSet<&'static str>,
    initramfs: Initramfs,
    limit: Duration,
    processors: u32,
    /// Kernel command line.
    command_line: String,
    /// Arguments of QEMU.
    arguments: Vec<String>,
    /// TAP devices of NICs on the host's bridge.
    taps: Vec<String>,
    /// Processors whose instructions are counted; None if the guest is not metered.
    metered: Option<Counted>,
    /// True if an I/O port of the guest leads to QEMU's monitor.
    monitor: bool,
}

impl Guest {
    /// Creates a guest with `kernel`, one processor and no NIC.
    pub fn new(kernel: Kernel) -> Self {
        let mut initramfs = Initramfs::default();
        for directory in ["proc", "sys", "dev", "tmp"] {
            initramfs.directory(directory);
        }
        let busybox =
            fs::read(parts::part("qemu").join("bin/busybox")).expect("setup-vm has fetched busybox");
        initramfs.file("bin/busybox", &busybox);
        initramfs.file("init", INIT.as_bytes());
        initramfs.file("etc/passwd", b"root:x:0:0::/:/bin/sh\n");
        let modules = BTreeSet::from(["af_packet_diag"]);
        Self {
            kernel,
            nics: Vec::new(),
            modules,
            initramfs,
            limit: if kernel.is_checking() { LIMIT_CHECKING } else { LIMIT },
            processors: 1,
            command_line: KERNEL_ARGUMENTS.to_owned(),
            arguments: Vec::new(),
            taps: Vec::new(),
            metered: None,
            monitor: false,
        }
    }

    /// Adds two NICs joined by a wire: `eth0` and `eth1`, then `eth2` and `eth3`.
    #[must_use]
    pub fn wire(mut self, first: Nic, second: Nic) -> Self {
        let hub = self.nics.len() / 2;
        for nic in [first, second] {
            self.add(nic, &format!("hubport,hubid={hub}"));
        }
        self
    }

    /// Adds two NICs joined by a bridge of the host in a new network namespace. Frames from `first`
    /// may be longer than the MTU and without checksums, so that a virtio-net has scatter-gather
    /// and its offloads.
    #[must_use]
    pub fn bridge(mut self, first: Nic, second: Nic) -> Self {
        let taps = [first, second].map(|nic| {
            let tap = format!("tap{}", self.nics.len());
            self.add(nic, &format!("tap,ifname={tap},script=no,downscript=no"));
            tap
        });
        self.taps.extend(taps);
        self
    }

    /// Adds an e1000 without a driver, by which the program `pump` (`lab/vm/pump.c`) sends frames
    /// at almost no cost to the guest, and `nic` on its wire, which is `eth0`. Must precede other
    /// NICs.
    #[must_use]
    pub fn pump(mut self, nic: Nic) -> Self {
        assert!(self.nics.is_empty(), "the pump must be the first NIC");
        let wire = "hubport,hubid=0";
        self.arguments.extend(Nic::E1000.arguments(0, wire));
        self.nics.push(Nic::E1000);
        self.initramfs.file("modules/driverless", Nic::e1000_address(0).as_bytes());
        let folder = tempfile::tempdir().expect("a temporary folder");
        self.initramfs.program("bin/pump", &meter::pump(folder.path()));
        self.add(nic, wire);
        self
    }

    fn add(&mut self, nic: Nic, end: &str) {
        self.arguments.extend(nic.arguments(self.nics.len(), end));
        self.nics.push(nic);
        self.modules.insert(nic.driver());
    }

    /// Adds a device without a driver beside the NIC `index`, an igb. After a reset of the bus for
    /// an error, Linux starts no device of a port if one of them has no driver.
    #[must_use]
    pub fn driverless_beside(mut self, index: usize) -> Self {
        let device = format!("e1000e,bus=port{index},addr=0.1,romfile=");
        let found = ["-global", "igb.multifunction=on", "-global", "igb.x-pcie-ari-nextfn-1=on"];
        self.arguments.extend(found.map(str::to_owned));
        self.arguments.push("-device".to_owned());
        self.arguments.push(device);
        self
    }

    /// Adds a word to the kernel command line, such as `swiotlb=force`.
    #[must_use]
    pub fn kernel_argument(mut self, word: &str) -> Self {
        self.command_line.push(' ');
        self.command_line.push_str(word);
        self
    }

    /// Adds an IOMMU (Intel's), which refuses transfers to memory that no driver has mapped. Must
    /// be added before the NICs.
    #[must_use]
    pub fn iommu(mut self) -> Self {
        assert!(self.nics.is_empty(), "QEMU wants the IOMMU before the devices");
        self.arguments.extend(["-device", "intel-iommu"].map(str::to_owned));
        self.kernel_argument("intel_iommu=on iommu.strict=1")
    }

    /// Sets the number of processors.
    #[must_use]
    pub fn processors(mut self, count: u32) -> Self {
        self.processors = count;
        self
    }

    /// Adds a kernel module with its dependencies.
    #[must_use]
    pub fn module(mut self, name: &'static str) -> Self {
        self.modules.insert(name);
        self
    }

    /// Adds a program of the host to the guest's `/bin`, with its libraries.
    #[must_use]
    pub fn program(mut self, path: impl AsRef<Path>) -> Self {
        let path = path.as_ref();
        let name = path.file_name().expect("a program has a name").to_string_lossy();
        self.initramfs.program(&format!("bin/{name}"), path);
        self
    }

    /// Adds the system's libpcap, which Strait loads on demand.
    #[must_use]
    pub fn libpcap(mut self) -> Self {
        let path = Path::new("/usr/lib/x86_64-linux-gnu/libpcap.so.0.8");
        let bytes = fs::read(path).unwrap_or_else(|error| panic!("read {}: {error}", path.display()));
        self.initramfs.file("usr/lib/x86_64-linux-gnu/libpcap.so.0.8", &bytes);
        self.initramfs.libraries(path);
        self
    }

    /// Adds a file at `path`, which starts with a slash.
    #[must_use]
    pub fn file(mut self, path: &str, bytes: &[u8]) -> Self {
        self.initramfs.file(path.trim_start_matches('/'), bytes);
        self
    }

    /// Counts the guest's instructions up to the marks in [`Run::marks`], which [`Guest::pump`]
    /// makes.
    #[must_use]
    pub fn metered(self) -> Self {
        self.count(Counted::All)
    }

    /// Counts the instructions of each processor. A mark in [`Run::marks`] has the counts of the
    /// processor that made it, by the program `mark` (`lab/vm/mark.c`).
    #[must_use]
    pub fn metered_by_processor(mut self) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        self.initramfs.program("bin/mark", &meter::mark(folder.path()));
        self.count(Counted::Own)
    }

    fn count(mut self, counted: Counted) -> Self {
        self.metered = Some(counted);
        self.kernel_argument(NO_SAMPLING)
    }

    /// Lets the PCI Express ports unplug their devices themselves (pciehp) instead of ACPI, which
    /// the checking kernels cannot do. Lockdep reports the order of pciehp's own locks, so it is
    /// off.
    #[must_use]
    pub fn native_hotplug(mut self) -> Self {
        let option = ["-global", "ICH9-LPC.acpi-pci-hotplug-with-bridge-support=off"];
        self.arguments.extend(option.map(str::to_owned));
        self.kernel_argument("lockdep.prove_locking=0")
    }

    /// Passes what the guest writes to its I/O port 0xe9 to QEMU's monitor, so that a script can
    /// cause errors of the hardware.
    #[must_use]
    pub fn monitor(mut self) -> Self {
        self.monitor = true;
        self
    }

    /// Sets the time limit.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Boots the guest and runs `script` with busybox's shell, with `-e` and `-u` set and the NICs
    /// down.
    ///
    /// # Errors
    /// The guest exceeds its time limit (the error has its output), or QEMU does not start.
    pub fn run(mut self, script: &str) -> Result<Run> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let initrd = folder.path().join("initrd");
        let log = folder.path().join("marks");
        if let Some(counted) = self.metered {
            self.arguments.extend(meter::arguments(folder.path(), &log, self.processors, counted));
        }
        if self.processors > 1 && self.metered.is_none() {
            self = self.kernel_argument(LOOPS_PER_JIFFY);
        }
        if self.monitor {
            self.arguments.extend(monitor(&folder.path().join("monitor")));
        }
        fs::write(&initrd, archive(self.initramfs, self.kernel, &self.modules, script))
            .expect("room for an initramfs");

        let machine = machine(self.kernel, &initrd, &self.command_line, !self.taps.is_empty())
            .args(["-smp", &self.processors.to_string()])
            .args(self.arguments);
        let namespace = (!self.taps.is_empty()).then(|| bridge(&self.taps)).transpose()?;
        let finished = match &namespace {
            Some(namespace) => machine.within(namespace),
            None => machine,
        }
        .run(self.limit)?;
        Ok(Run { marks: meter::marks(&log), ..Run::read(&finished.text(), &finished.stderr) })
    }
}

/// Returns QEMU's arguments for the I/O port, which is joined to the monitor by `socket`.
fn monitor(socket: &Path) -> Vec<String> {
    let socket = socket.display();
    let port = format!("socket,id=port,path={socket},server=on,wait=off");
    let monitor = format!("socket,id=monitor,path={socket}");
    [
        "-chardev",
        &port,
        "-device",
        "isa-debugcon,chardev=port",
        "-chardev",
        &monitor,
        "-mon",
        "chardev=monitor",
    ]
    .map(str::to_owned)
    .into()
}

/// Creates a network namespace with `taps` on a bridge.
fn bridge(taps: &[String]) -> Result<Namespace> {
    let namespace = Namespace::new()?;
    let ip = |arguments: &str| {
        let finished = Launch::inside(&namespace, "ip").args(arguments.split(' ')).run(LIMIT)?;
        let _ = finished.success();
        Ok::<_, Error>(())
    };
    ip("link add bridge type bridge stp_state 0 forward_delay 0")?;
    for tap in taps {
        ip(&format!("tuntap add {tap} mode tap vnet_hdr"))?;
        ip(&format!("link set {tap} up master bridge"))?;
    }
    ip("link set bridge up")?;
    Ok(namespace)
}

/// Builds the initramfs with the modules and the script.
fn archive(
    mut initramfs: Initramfs,
    kernel: Kernel,
    modules: &BTreeSet<&'static str>,
    script: &str,
) -> Vec<u8> {
    let mut order = String::new();
    for (name, module) in kernel.modules(modules) {
        initramfs.file(&format!("modules/{name}.ko"), &module);
        order.push_str(&name);
        order.push('\n');
    }
    initramfs.file("modules/order", order.as_bytes());
    initramfs.file("test", script.as_bytes());
    initramfs.finish()
}

/// Returns QEMU's model of the processor. Early in the boot KASAN takes addresses of a five-level
/// page table for invalid, while the kernel detects the processor's features.
fn processor(kernel: Kernel) -> &'static str {
    if kernel == Kernel::Debug { "max,-erms,-fsrm,-la57" } else { "max,-erms,-fsrm" }
}

/// Launches QEMU with a minimal machine: processor, memory, a serial line and the exit port.
fn machine(kernel: Kernel, initrd: &Path, command_line: &str, has_namespace: bool) -> Launch<'static> {
    let share = parts::part("qemu").join("usr/share");
    let launch = if has_namespace { parts::launch_for_namespace } else { parts::launch };
    launch("usr/bin/qemu-system-x86_64")
        .args(["-L", &share.join("qemu").to_string_lossy(), "-L", &share.join("seabios").to_string_lossy()])
        .args(["-machine", "q35,accel=tcg", "-cpu", processor(kernel), "-m", &MEMORY_MIB.to_string()])
        .args(["-nodefaults", "-nographic", "-no-reboot", "-serial", "stdio"])
        .args(["-device", "isa-debug-exit,iobase=0xf4,iosize=0x04"])
        .arg("-kernel")
        .arg(kernel.image())
        .arg("-initrd")
        .arg(initrd)
        .args(["-append", command_line])
}

/// Output and exit status of a guest.
#[derive(Clone, Debug)]
pub struct Run {
    /// Output of the script, mixed with kernel messages.
    pub output: String,
    /// Exit code of the script; None if the guest ended before it, for example by a panic.
    pub status: Option<u8>,
    /// All other output: before the script, and QEMU's own.
    pub log: String,
    /// Marks of a metered guest, in order.
    pub marks: Vec<Mark>,
}

impl Run {
    fn read(serial: &str, errors: &str) -> Self {
        let serial = serial.replace('\r', "");
        let (before, rest) = serial.split_once(START).unwrap_or((&serial, ""));
        let (output, after) = rest.rsplit_once(END).unwrap_or((rest, ""));
        let status = after.lines().next().and_then(|code| code.parse().ok());
        Self { output: output.to_owned(), status, log: format!("{before}\n{errors}"), marks: Vec::new() }
    }

    /// Returns `self`, or panics with the output if the script did not end with 0.
    #[must_use]
    pub fn success(self) -> Self {
        assert_eq!(self.status, Some(0), "the guest's script failed:\n{}\n{}", self.log, self.output);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_output_is_separated_from_the_log() {
        let run = Run::read("SeaBIOS\r\nguest: start\r\nhello\r\nguest: exit 3\r\n", "qemu: warning\n");
        assert_eq!((run.output.as_str(), run.status), ("hello\n", Some(3)));
        assert!(run.log.contains("SeaBIOS") && run.log.contains("warning"));
    }

    #[test]
    fn panicked_guest_has_no_status() {
        let run = Run::read("guest: start\nhello\nKernel panic - not syncing\n", "");
        assert_eq!(run.status, None);
        assert!(run.output.contains("panic"));
    }
}
