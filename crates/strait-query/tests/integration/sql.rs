//! SQL over capture files.

use std::fs;

use crate::traffic::{MILLISECOND, SECOND, Traffic, scenes};
use crate::{Scene, printed, text};

#[test]
fn packets_have_addresses_as_text_and_times_in_rfc_3339() {
    let scene = Scene::new();
    let sql = "select time, source_address, destination_address, source_port, length, protocol \
        from packets order by time limit 2";
    let expected = "time,source_address,destination_address,source_port,length,protocol\n\
        2025-11-25T16:00:00Z,10.0.0.1,10.0.0.2,40000,54,6\n\
        2025-11-25T16:00:00.005Z,10.0.0.2,10.0.0.1,443,54,6\n";
    assert_eq!(printed(&["--csv", sql, &scene.capture()]), expected);
}

#[test]
fn every_packet_of_every_file_is_a_row() {
    let scene = Scene::new();
    let mut files = vec![scene.capture()];
    for number in 0..4 {
        let mut traffic = Traffic::default();
        traffic.connection(number * SECOND, [(1, 40_000), (2, 443)], MILLISECOND, [1, 1]);
        let path = scene.path(&format!("{number}.pcap"));
        traffic.write(&path);
        files.push(text(&path));
    }
    let sql = "select count(*) as packets, count(tcp_flags) as segments from packets";
    let arguments: Vec<&str> = ["--csv", sql].into_iter().chain(files.iter().map(String::as_str)).collect();
    let all = scenes().len() + 4 * 8;
    // Seven datagrams are DNS, and sixty a stream.
    assert_eq!(printed(&arguments), format!("packets,segments\n{all},{}\n", all - 67));
}

#[test]
fn columns_in_any_order_filters_and_joins_give_the_rows_of_the_file() {
    let scene = Scene::new();
    let sql = "select p.destination_port, f.sourceAddress from packets p join flows f \
        on p.source_address = f.sourceAddress and p.source_port = f.sourceTransportPort \
        where p.tcp_flags = 2 and p.source_port = 40002";
    let expected = "destination_port,sourceAddress\n80,10.0.0.3\n";
    assert_eq!(printed(&["--csv", sql, &scene.capture()]), expected);
    let sql = "select ttl, source_mac, time, source_address_bytes from packets where ip_id = 0 limit 1";
    let row = printed(&["--csv", sql, &scene.capture()]);
    let row = row.lines().nth(1).unwrap();
    assert!(row.starts_with("64,02:00:00:00:00:01,2025-11-25T16:00:00Z,"), "{row}");
}

#[test]
fn flows_and_names_are_found_in_a_capture() {
    let scene = Scene::new();
    let sql = "select packetDeltaCount, reversePacketDeltaCount, handshakeNanoseconds, communityId is not null as id \
        from flows where sourceTransportPort = 40000";
    let expected = "packetDeltaCount,reversePacketDeltaCount,handshakeNanoseconds,id\n5,3,10000000,true\n";
    assert_eq!(printed(&["--csv", sql, &scene.capture()]), expected);
    let sql = "select query, message, response_code from dns where transaction_id = 2 order by time";
    let expected = "query,message,response_code\nnone.example,query,\nnone.example,response,3\n";
    assert_eq!(printed(&["--csv", sql, &scene.capture()]), expected);
}

#[test]
fn tables_and_columns_are_listed() {
    let scene = Scene::new();
    let tables = printed(&["--csv", "show tables", &scene.capture()]);
    for name in ["packets", "flows", "dns", "tls", "http"] {
        assert!(tables.contains(&format!(",public,{name},")), "{tables}");
    }
    let columns = printed(&["--csv", "describe flows", &scene.capture()]);
    assert!(columns.contains("sourceAddress") && columns.contains("octetDeltaCount"), "{columns}");
}

#[test]
fn a_query_needs_no_file_and_an_empty_result_is_no_error() {
    assert_eq!(printed(&["--csv", "select 1 + 1 as two"]), "two\n2\n");
    let scene = Scene::new();
    let sql = "select source_port from packets where source_port = 1";
    assert_eq!(printed(&[sql, &scene.capture()]), "source_port\n(0 rows)\n");
    // A file without packets is a capture too.
    let empty = scene.path("empty.pcap");
    fs::write(&empty, Traffic::default().pcap()).unwrap();
    assert_eq!(printed(&["--csv", "select count(*) as n from flows", &text(&empty)]), "n\n0\n");
}

#[test]
fn a_limited_query_ends_without_the_rest_of_its_files() {
    let scene = Scene::new();
    let capture = scene.capture();
    // A file that is read to its cut end would be reported.
    let whole = fs::read(&capture).unwrap();
    let cut = scene.path("cut.pcap");
    fs::write(&cut, &whole[..whole.len() - 1]).unwrap();
    let cut = text(&cut);
    let files = std::iter::repeat_n(capture.as_str(), 64).chain(std::iter::repeat_n(cut.as_str(), 64));
    let arguments: Vec<&str> =
        ["--csv", "select length from packets limit 1"].into_iter().chain(files).collect();
    assert_eq!(printed(&arguments), "length\n54\n");
}
