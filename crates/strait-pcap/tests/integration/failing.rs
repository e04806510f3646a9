//! Tests of errors that libpcap itself returns, by a library that makes its functions fail.

use lab::{Launch, Wire, program_or_skip};

use crate::rig::{LIMIT, SOURCES, built, library};

/// Runs `failing.c` with these arguments while `function` of libpcap fails. Returns its output.
fn output(function: &str, arguments: &[&str]) -> Option<String> {
    let wire = Wire::builder().or_skip().filter(|_| program_or_skip("cc"))?;
    let directory = tempfile::tempdir().unwrap();
    let program = built(&["failing.c"], directory.path());
    let interposed = directory.path().join("interposed.so");
    let launch = Launch::new("cc").args(["-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-D_GNU_SOURCE"]);
    let launch = launch.arg(format!("{SOURCES}/c/interposed.c")).arg("-o").arg(&interposed);
    let _ = launch.arg("-ldl").run(LIMIT).unwrap().success();
    let preloaded = std::env::join_paths([library(), interposed]).unwrap();
    let launch = wire.right().command(&program).args(arguments).env("LD_PRELOAD", preloaded);
    Some(launch.env("FAILS", function).spawn().unwrap().wait(LIMIT).unwrap().success().text())
}

#[test]
fn create_reports_that_no_handle_could_be_made() {
    let Some(output) = output("pcap_open_dead", &["right"]) else { return };
    assert_eq!(output.trim(), "create: out of memory for a libpcap handle");
}

#[test]
fn compile_without_the_device_refuses_the_keyword_vlan_only() {
    let compiled = |filter| output("pcap_activate", &["right", filter]);
    for filter in ["vlan", "vlan 5 and udp", "udp and(vlan)", "not vlan&&ip"] {
        let Some(output) = compiled(filter) else { return };
        assert!(output.contains("filter for VLAN tags"), "{filter}: {output}");
    }
    // A name that contains the word is no VLAN filter: libpcap gets it, and looks it up.
    let Some(output) = compiled("host vlan-gw.invalid") else { return };
    assert!(output.contains("vlan-gw.invalid") && !output.contains("VLAN tags"), "{output}");
}
