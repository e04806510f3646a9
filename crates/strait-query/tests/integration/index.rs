//! Indexes of capture files: the same packets as without them, from fewer parts of the files.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use strait_capture::file::FileReader;
use strait_capture::index::{Builder, Index, Place, build, identity, load, path_of};
use strait_table::flows::FlowIds;

use crate::traffic::{ACK, MILLISECOND, SECOND, Traffic};
use crate::{Scene, refused, run, text};

/// Queries that select packets in all ways: by flow and interval, flow and time, and time alone.
const QUERIES: [&str; 6] = [
    "select * from flows where sourceTransportPort = 20007",
    "select * from flows where sourceTransportPort in (20001, 20250) or destinationTransportPort = 9",
    "select flowStartNanoseconds as time, communityId as community_id from flows where sourceTransportPort = 20100",
    "select time from packets where source_port = 20299",
    "select * from flows where sourceTransportPort = 1",
    "select * from flows",
];

/// Returns 300 flows of 20 segments each, one after the other, with a datagram of one flow now and
/// then. They are in about six parts.
fn traffic() -> Traffic {
    let mut traffic = Traffic::default();
    for flow in 0..300_u16 {
        let start = u64::from(flow) * SECOND;
        let ends = [(1, 20_000 + flow), (2, 443)];
        for packet in 0..20 {
            let after = start + u64::from(packet) * MILLISECOND;
            traffic.tcp(after, ends, [100 + packet * 1000, 1], ACK, 1000, 1000);
        }
        if flow % 50 == 0 {
            traffic.udp(start + 500 * MILLISECOND, [(3, 7), (4, 9)], b"now and then");
        }
    }
    traffic
}

fn scene() -> (Scene, PathBuf) {
    Scene::with_large(&traffic())
}

/// Writes the packets that a query selects. Returns the file, and the lines of messages.
fn retrieve(scene: &Scene, query: &str, files: &[&Path]) -> (Vec<u8>, Vec<String>) {
    let out = text(&scene.path("selected.pcapng"));
    let files: Vec<String> = files.iter().map(|file| text(file)).collect();
    let files = files.iter().map(String::as_str);
    let output = run(&["--pcap", &out, query].into_iter().chain(files).collect::<Vec<_>>());
    assert!(output.status.success() && output.stdout.is_empty(), "{query}: {output:?}");
    let lines = String::from_utf8(output.stderr).unwrap().lines().map(str::to_owned).collect();
    (fs::read(&out).unwrap(), lines)
}

pub(crate) fn index_files(files: &[&Path]) {
    let files: Vec<String> = files.iter().map(|file| text(file)).collect();
    let output = run(&["--index"].into_iter().chain(files.iter().map(String::as_str)).collect::<Vec<_>>());
    assert!(output.status.success() && output.stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
}

/// Returns the numbers of read parts and of all, from the first line of messages.
fn extent(lines: &[String]) -> (u64, u64) {
    let (_, line) = lines[0].split_once("; of the indexed files ").expect("a number of parts");
    let numbers: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
    (numbers[0], numbers[1])
}

/// Writes an index of `places` that claims to be that of a file.
pub(crate) fn forge(path: &Path, header: u64, places: &[Place]) {
    let mut builder = Builder::new(header);
    for place in places {
        builder.packet(place);
    }
    let identity = identity(&File::open(path).unwrap()).unwrap();
    fs::write(path_of(path), builder.finish(&identity).unwrap()).unwrap();
}

#[test]
fn packets_with_an_index_are_those_without_it_from_fewer_parts() {
    let (scene, large) = scene();
    let small = scene.path("scenes.pcap");
    let without: Vec<_> = QUERIES.map(|query| retrieve(&scene, query, &[&large, &small])).into();
    index_files(&[&large, &small]);
    for (query, (expected, lines)) in QUERIES.iter().zip(&without) {
        assert!(lines[1].contains("large.pcap: it has no index, and 1 more files"), "{lines:?}");
        let (found, lines) = retrieve(&scene, query, &[&large, &small]);
        assert!(found == *expected, "{query}");
        let (read, parts) = extent(&lines);
        assert!(lines.len() == 1 && parts > 8, "{lines:?}");
        assert_eq!(read < parts, *query != "select * from flows", "{query}: {lines:?}");
    }
    // One flow is in one or two parts, beside the two headers.
    let (_, lines) = retrieve(&scene, QUERIES[0], &[&large, &small]);
    assert!((3..=4).contains(&extent(&lines).0), "{lines:?}");
    // No file has it.
    let (_, lines) = retrieve(&scene, QUERIES[4], &[&large, &small]);
    assert_eq!(extent(&lines).0, 2, "{lines:?}");
}

#[test]
fn files_without_a_valid_index_are_read_completely() {
    let (scene, large) = scene();
    let expected = retrieve(&scene, QUERIES[0], &[&large]).0;
    index_files(&[&large]);
    let index = fs::read(path_of(&large)).unwrap();
    let mut flipped = index.clone();
    flipped[100] ^= 1;
    let mut newer = index.clone();
    newer[8] = 9;
    for (bytes, reason) in [
        (flipped, "its index is not valid: it is damaged: the checksum does not match"),
        (
            index[..index.len() / 2].to_vec(),
            "its index is not valid: it is damaged: the checksum does not match",
        ),
        (newer, "its index is not valid: version 9 with flow identifiers 1 is not supported, only 1 with 1"),
        (Vec::new(), "its index is not valid: it is no index"),
    ] {
        fs::write(path_of(&large), bytes).unwrap();
        let (found, lines) = retrieve(&scene, QUERIES[0], &[&large]);
        assert!(found == expected, "{reason}");
        let note = format!("note: read completely: {}: {reason}; strait query --index FILE", large.display());
        assert!(lines.len() == 2 && lines[1].contains(&note), "{lines:?}");
    }
    // The index of a file that has grown.
    fs::write(path_of(&large), index).unwrap();
    let mut bytes = fs::read(&large).unwrap();
    bytes.extend_from_within(24..24 + 16 + 1054);
    fs::write(&large, bytes).unwrap();
    let (_, lines) = retrieve(&scene, QUERIES[0], &[&large]);
    assert!(lines.len() == 2 && lines[1].contains("it has changed since it was indexed"), "{lines:?}");
}

#[test]
fn index_that_does_not_describe_its_file_is_not_used() {
    let (scene, large) = scene();
    let small = scene.path("scenes.pcap");
    let query = QUERIES[5];
    let expected = retrieve(&scene, query, &[&small, &large, &small]).0;
    index_files(&[&large, &small]);
    let bytes = fs::metadata(&large).unwrap().len();
    let everything = |end, time_ns| Place { end, time_ns, flow: None, describes: true };
    let start = crate::traffic::START_NS;
    for (header, places) in [
        // A header that is too long, parts that end within a packet, and those with other packets
        // or times.
        (25, vec![]),
        (24, vec![everything(24 + 1_500_000, start)]),
        (24, vec![everything(24 + 2 * 1070, start)]),
        (24, vec![everything(24 + 1070, 5)]),
        (24, vec![everything(bytes, 0)]),
    ] {
        forge(&large, header, &places);
        // The packets before the defect are not written twice.
        let (found, lines) = retrieve(&scene, query, &[&small, &large, &small]);
        assert!(found == expected, "{places:?}");
        assert!(lines.len() == 2, "{lines:?}");
        assert!(lines[1].contains("large.pcap: its index does not describe it"), "{places:?} {lines:?}");
    }
}

/// Who can write an index can also write the capture file: parts that a valid index lets a reader
/// skip are not compared with the file.
#[test]
fn parts_that_a_valid_index_hides_are_not_read() {
    let (scene, large) = scene();
    let mut reader = FileReader::open(&text(&large)).unwrap();
    let mut places = Vec::new();
    while let Some(packet) = reader.next().unwrap() {
        let time_ns = packet.timestamp_ns;
        places.push(Place { end: reader.offset(), time_ns, flow: None, describes: false });
    }
    forge(&large, 24, &places);
    let (_, lines) = retrieve(&scene, QUERIES[0], &[&large]);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("wrote 0 packets to") && extent(&lines).0 == 1, "{lines:?}");
}

#[test]
fn interfaces_in_the_middle_of_a_file_are_known_to_later_parts() {
    let (scene, large) = scene();
    // Two files of pcapng, one after the other, are one.
    let halves = [QUERIES[5], "select * from flows where sourceTransportPort > 20150"]
        .map(|query| retrieve(&scene, query, &[&large]).0);
    let joined = scene.path("joined.pcapng");
    fs::write(&joined, halves.concat()).unwrap();
    let query = "select * from flows where sourceTransportPort = 20298";
    let expected = retrieve(&scene, query, &[&joined]).0;
    index_files(&[&joined]);
    let index = load(&joined, &File::open(&joined).unwrap()).unwrap();
    let described: Vec<bool> = index.parts().map(|part| part.describes).collect();
    assert_eq!(described.iter().filter(|is_described| **is_described).count(), 2, "{described:?}");
    let (found, lines) = retrieve(&scene, query, &[&joined]);
    let (read, parts) = extent(&lines);
    assert!(found == expected && read < parts, "{lines:?}");
}

#[test]
fn index_of_the_program_is_that_of_the_library() {
    let (_scene, large) = scene();
    index_files(&[&large]);
    let mut ids = FlowIds::new();
    let built = build(&text(&large), |packet| ids.of(packet.bytes, packet.link_type as u16)).unwrap();
    assert_eq!(Index::parse(built).unwrap(), load(&large, &File::open(&large).unwrap()).unwrap());
}

#[test]
fn damaged_files_get_no_index_and_do_not_stop_the_others() {
    let (scene, large) = scene();
    let cut = scene.path("cut.pcap");
    let bytes = fs::read(&large).unwrap();
    fs::write(&cut, &bytes[..bytes.len() - 1]).unwrap();
    let message = refused(&["--index", &text(&cut), &text(&large)], 1);
    assert!(message.starts_with(&text(&cut)) && message.contains("is cut at byte"), "{message}");
    assert!(!path_of(&cut).exists() && path_of(&large).exists());
    assert_eq!(refused(&["--index"], 2), "--index: give capture files");
    assert!(refused(&["--index", "/dev/null"], 1).contains("only a regular file can have an index"));
}

#[test]
fn an_index_has_the_mode_of_its_capture_and_is_not_used_if_others_can_write_to_it() {
    use std::os::unix::fs::PermissionsExt as _;
    let (_scene, path) = scene();
    let index = path_of(&path);
    let permit = |file: &Path, mode| fs::set_permissions(file, fs::Permissions::from_mode(mode)).unwrap();
    for (mode, refused) in [(0o600, 0o620), (0o644, 0o664), (0o644, 0o646)] {
        permit(&path, mode);
        index_files(&[&path]);
        assert_eq!(fs::metadata(&index).unwrap().permissions().mode() & 0o777, mode);
        let capture = File::open(&path).unwrap();
        load(&path, &capture).unwrap();
        permit(&index, refused);
        let reason = load(&path, &capture).unwrap_err().to_string();
        assert!(reason.contains("others can write to it"), "{reason}");
    }
}
