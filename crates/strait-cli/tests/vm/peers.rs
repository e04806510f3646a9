//! Guests with the programs that Strait is compared with.

use std::fs;
use std::path::{Path, PathBuf};

use lab::compile;
use lab::vm::{Guest, Kernel, Nic, part};

use super::{guest, pf_zerocopy};

/// Kernel of the guests.
pub(super) const KERNEL: Kernel = Kernel::V7_2;
/// The compiler's options for a program with DPDK: its drivers, which no symbol refers to, and its
/// other libraries, which refer to each other.
const DPDK_OPTIONS: &str = "-static -march=corei7 -include rte_config.h \
    -Wl,--whole-archive -l:librte_net_e1000.a -l:librte_net_virtio.a -l:librte_net_af_xdp.a \
    -l:librte_bus_pci.a -l:librte_bus_vdev.a \
    -l:librte_mempool_ring.a -Wl,--no-whole-archive \
    -Wl,--start-group -l:librte_ethdev.a -l:librte_mbuf.a -l:librte_mempool.a -l:librte_ring.a -l:librte_eal.a \
    -l:librte_kvargs.a -l:librte_telemetry.a -l:librte_net.a -l:librte_pci.a -l:librte_meter.a -l:librte_timer.a \
    -l:librte_hash.a -l:librte_rcu.a -l:librte_cryptodev.a -l:librte_security.a -lnuma -lbsd -lmd -lm \
    -lxdp -lbpf -lelf -lz -Wl,--end-group";
/// BPF programs that DPDK's driver for AF_XDP loads, by libxdp.
const XDP_PROGRAMS: &str = "usr/lib/x86_64-linux-gnu/bpf";

/// Adds the program with DPDK.
fn with_dpdk(guest: Guest) -> Guest {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("dpdk_recv");
    let arguments = dpdk_arguments();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    compile(&peer_source("dpdk_recv"), &arguments, &program);
    ["xsk_def_xdp_prog.o", "xdp-dispatcher.o"].iter().fold(guest.program(&program), |guest, name| {
        let path = format!("{XDP_PROGRAMS}/{name}");
        let object = fs::read(part("dpdk").join(&path)).expect("setup-vm has fetched libxdp");
        guest.file(&format!("/{path}"), &object)
    })
}

/// Returns the compiler's arguments for a program with DPDK.
fn dpdk_arguments() -> Vec<String> {
    let place =
        |option: &str, folder: &str| format!("{option}{}", part("dpdk").join("usr").join(folder).display());
    let headers = ["include/dpdk", "include", "include/x86_64-linux-gnu/dpdk"];
    let mut arguments: Vec<String> = headers.iter().map(|folder| place("-isystem", folder)).collect();
    arguments.push(place("-L", "lib/x86_64-linux-gnu"));
    arguments.extend(DPDK_OPTIONS.split_whitespace().map(str::to_owned));
    arguments
}

fn peer_source(program: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../strait-bench/peers/{program}.c"))
}

/// Returns a guest with the compared programs and the drivers.
pub(super) fn guest_with_peers(nic: Nic) -> Guest {
    let folder = tempfile::tempdir().unwrap();
    let guest = guest(KERNEL).pump(nic).module("uio_pci_generic");
    let mut guest = with_dpdk(pf_zerocopy::with_module(guest, KERNEL));
    let module = format!("-I{}", pf_zerocopy::repository().join("kmod/pf_zerocopy").display());
    let programs: [(&str, &[&str]); 4] = [
        ("pcap_count", &["-lpcap"]),
        ("afpacket_recv", &[]),
        ("afxdp_recv", &[]),
        ("zerocopy_recv", &[&module]),
    ];
    for (program, arguments) in programs {
        let output = folder.path().join(program);
        compile(&peer_source(program), arguments, &output);
        guest = guest.program(&output);
    }
    let drop_in = super::strait().with_file_name("libstrait_pcap.so");
    guest.program("/usr/sbin/ethtool").program("/usr/bin/tcpdump").program(drop_in)
}
