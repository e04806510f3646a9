//! Tests of the exported names: the listed ones, and no others.

use std::collections::BTreeSet;
use std::path::Path;

use lab::{Launch, program_or_skip};

use crate::rig::{LIMIT, library};

/// Names of all exports.
const LISTED: &str = include_str!("exports.txt");

/// Live calls, which Strait implements.
const LIVE: &str = "
    pcap_activate pcap_breakloop pcap_can_set_rfmon pcap_close pcap_create pcap_datalink pcap_dispatch pcap_fileno
    pcap_findalldevs pcap_get_required_select_timeout pcap_get_selectable_fd pcap_geterr pcap_getnonblock pcap_inject
    pcap_list_datalinks pcap_list_tstamp_types pcap_loop pcap_next pcap_next_ex pcap_open_live pcap_perror
    pcap_sendpacket pcap_set_buffer_size pcap_set_datalink pcap_set_immediate_mode pcap_set_promisc
    pcap_set_protocol_linux pcap_set_rfmon pcap_set_snaplen pcap_set_timeout pcap_set_tstamp_precision
    pcap_set_tstamp_type pcap_setdirection pcap_setfilter pcap_setnonblock pcap_snapshot pcap_stats";

fn listed() -> BTreeSet<&'static str> {
    LISTED.lines().collect()
}

/// Returns the exported names of a library, of functions and of data.
fn exported(library: &Path) -> BTreeSet<String> {
    let launch = Launch::new("nm").args(["-D", "--defined-only", "--format=posix"]).arg(library);
    let text = launch.run(LIMIT).unwrap().success().text();
    text.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

#[test]
fn exports_are_the_listed_names_and_include_the_live_calls() {
    if !program_or_skip("nm") {
        return;
    }
    let listed = listed();
    assert!(exported(&library()).iter().map(String::as_str).eq(listed.iter().copied()));
    for call in LIVE.split_whitespace() {
        assert!(listed.contains(call), "{call}");
    }
}

#[test]
fn all_functions_of_libpcap_are_exported() {
    let stock = ["/usr/lib/x86_64-linux-gnu/libpcap.so.0.8", "/usr/lib64/libpcap.so.1"];
    let Some(stock) = stock.into_iter().map(Path::new).find(|path| path.exists()) else {
        return lab::skip("libpcap is somewhere else");
    };
    if !program_or_skip("nm") {
        return;
    }
    let ours = listed();
    let missing: Vec<_> = exported(stock).into_iter().filter(|name| !ours.contains(name.as_str())).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
