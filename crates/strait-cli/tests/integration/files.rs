//! Capture files: complete, correct, and readable by common programs.

use lab::Wire;

use crate::refusals::RECORDING;
use crate::rig::{
    Capture, PATHS, Packet, assert_complete, count, failure, ledger, numbered, packets, run, send, tagged,
};
use crate::tools::{self, AS_BLOCKS, capinfos, tcpdump, tshark};

#[test]
fn pcapng_file_is_read_by_tcpdump_tshark_and_capinfos_without_a_warning() {
    read_by_others("pcapng");
}

#[test]
fn pcap_file_is_read_by_tcpdump_tshark_and_capinfos_without_a_warning() {
    read_by_others("pcap");
}

const SNAPLEN: usize = 100;

/// Captures plain frames, which the filter rejects, and tagged frames, which it accepts and the
/// snaplen truncates.
fn read_by_others(format: &str) {
    let Some(wire) = Wire::builder().or_skip() else { return };
    if !tools::present() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("capture");
    let path = file.to_str().unwrap();
    let options = ["-w", path, "--format", format, "--snaplen", "100", "--json", "vlan", "5", "and", "udp"];
    let capture = Capture::start(wire.right(), &options);
    send(&wire, &numbered(40));
    send(&wire, &tagged(80));
    let ledger = ledger(&capture.finish());
    assert_eq!(
        (count(&ledger, "received"), count(&ledger, "delivered"), count(&ledger, "filtered")),
        (120, 40, 80)
    );

    let sent: Vec<Vec<u8>> = tagged(80).into_iter().filter(|frame| is_udp(frame)).collect();
    let cut = |frame: &Vec<u8>| Packet {
        bytes: frame[..frame.len().min(SNAPLEN)].to_vec(),
        wire_len: frame.len() as u32,
    };
    assert_eq!(packets(&file), sent.iter().map(cut).collect::<Vec<_>>());

    assert_eq!(capinfos(&file).0, 40);
    let lines = tcpdump(&file);
    assert!(lines.len() == 40 && lines.iter().all(|line| line.contains(".20000: ")), "{lines:?}");
    let fields = ["frame.len", "frame.cap_len", "vlan.id"];
    let seen = tshark(&file, &[], &fields);
    let expected = |frame: &Vec<u8>| {
        [frame.len().to_string(), frame.len().min(SNAPLEN).to_string(), "5".to_owned()].to_vec()
    };
    assert_eq!(seen, sent.iter().map(expected).collect::<Vec<_>>());
    if format == "pcapng" {
        assert_eq!(interface_statistics(&file), ["120", "40", "0", "40"]);
    }
}

#[test]
fn extension_of_the_file_selects_its_format() {
    // pcap with nanoseconds, and the section header of pcapng.
    const PCAP: u32 = 0xa1b2_3c4d;
    const PCAPNG: u32 = 0x0a0d_0d0a;
    if !tools::present() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let wrote = |name: &str, options: &[&str]| {
        let file = directory.path().join(name);
        let _ =
            run(&[&["capture", "-r", RECORDING, "-w", file.to_str().unwrap()], options].concat()).success();
        let magic: [u8; 4] = std::fs::read(&file).unwrap()[..4].try_into().unwrap();
        (u32::from_le_bytes(magic), capinfos(&file).1)
    };
    for (name, options, magic, file_type) in [
        ("a.pcap", &[][..], PCAP, "nsecpcap"),
        ("a.CAP", &[], PCAP, "nsecpcap"),
        ("a.pcapng", &[], PCAPNG, "pcapng"),
        ("a", &[], PCAPNG, "pcapng"),
        ("b.pcap", &["--format", "pcapng"], PCAPNG, "pcapng"),
        ("b.pcapng", &["--format", "pcap"], PCAP, "nsecpcap"),
    ] {
        let (found, text) = wrote(name, options);
        assert_eq!(found, magic, "{name}");
        let kind = text.lines().find(|line| line.starts_with("File type:")).unwrap();
        assert!(kind.contains(file_type), "{name}: {kind}");
    }
}

/// Returns true if a frame with one VLAN tag has UDP.
fn is_udp(frame: &[u8]) -> bool {
    match frame[16..18] {
        [0x08, 0x00] => frame[18 + 9] == 17,
        _ => frame[18 + 6] == 17,
    }
}

/// Returns tshark's values of the file's single interface statistics block.
fn interface_statistics(file: &std::path::Path) -> Vec<String> {
    let of_interface = |name| format!("pcapng.options.option.data.interface.{name}");
    let names = ["received", "accepted_by_filter", "dropped_by_os", "delivered_to_user"].map(of_interface);
    let mut rows = tshark(file, &AS_BLOCKS, &names.each_ref().map(String::as_str));
    assert_eq!(rows.len(), 1, "{rows:?}");
    rows.remove(0)
}

#[test]
fn every_path_writes_every_frame_once_and_in_order() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let directory = tempfile::tempdir().unwrap();
    for path in PATHS {
        let file = directory.path().join(path);
        let capture = Capture::start(wire.right(), &["--path", path, "-w", file.to_str().unwrap(), "--json"]);
        send(&wire, &numbered(300));
        let ledger = ledger(&capture.finish());
        assert_eq!((&ledger["path"], count(&ledger, "delivered")), (&path.into(), 300), "{ledger}");
        assert_complete(&file, 300);
    }
}

#[test]
fn indexes_are_beside_their_files_and_have_their_flows() {
    use strait_capture::index::{Index, build, load};
    let directory = tempfile::tempdir().unwrap();
    for name in ["out.pcapng", "out.pcap"] {
        let file = directory.path().join(name);
        let captured = run(&["capture", "-r", RECORDING, "-w", file.to_str().unwrap(), "--index"]).success();
        assert!(!captured.stderr.contains("no index"), "{}", captured.stderr);
        let index = load(&file, &std::fs::File::open(&file).unwrap()).unwrap();
        let mut ids = strait_table::flows::FlowIds::new();
        let mut flows = Vec::new();
        let built = build(file.to_str().unwrap(), |packet| {
            let flow = ids.of(packet.bytes, packet.link_type as u16);
            flows.extend(flow);
            flow
        });
        assert_eq!(Index::parse(built.unwrap()).unwrap(), index, "{name}");
        assert!(!flows.is_empty() && flows.iter().all(|flow| index.parts().any(|part| part.may_have(*flow))));
    }
}

#[test]
fn index_without_a_file_is_refused() {
    for (arguments, cause) in [
        (&["capture", "-r", RECORDING, "--index"][..], "--index needs an output: give -w FILE"),
        (&["capture", "-r", RECORDING, "--index", "-w", "/dev/null"], "an index needs the name of a file"),
    ] {
        let (code, line) = failure(&run(arguments));
        assert!(code == 2 && line.contains(cause), "{code} {line}");
    }
}
