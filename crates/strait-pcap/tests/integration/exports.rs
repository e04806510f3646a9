//! The library exports the calls that it answers for, and nothing else.

use lab::{Launch, program_or_skip};

use crate::rig::{LIMIT, library};

const CALLS: &str = "
    pcap_activate pcap_breakloop pcap_close pcap_compile pcap_create pcap_datalink pcap_dispatch pcap_dump_fopen
    pcap_dump_open pcap_dump_open_append pcap_fileno pcap_get_required_select_timeout pcap_get_selectable_fd
    pcap_get_tstamp_precision pcap_getnonblock pcap_inject pcap_loop pcap_next pcap_next_ex pcap_open_live
    pcap_sendpacket pcap_set_buffer_size pcap_set_immediate_mode pcap_set_promisc pcap_set_protocol_linux
    pcap_set_rfmon pcap_set_snaplen pcap_set_timeout pcap_set_tstamp_precision pcap_set_tstamp_type
    pcap_setdirection pcap_setfilter pcap_setnonblock pcap_snapshot pcap_stats";

#[test]
fn the_exports_are_the_calls() {
    if !program_or_skip("nm") {
        return;
    }
    let launch = Launch::new("nm").args(["-D", "--defined-only", "--format=posix"]).arg(library());
    let text = launch.run(LIMIT).unwrap().success().text();
    let mut exported: Vec<&str> = text.lines().filter_map(|line| line.split(' ').next()).collect();
    exported.sort_unstable();
    let expected: Vec<&str> = CALLS.split_whitespace().collect();
    assert_eq!(exported, expected);
}
