//! Tables of messages: DNS, TLS and HTTP have the fields that tshark prints, from a file and live.

use std::path::Path;

use lab::Wire;

use crate::refusals::RECORDING;
use crate::rig::{Capture, packets, run, send};
use crate::tables::Lake;
use crate::tools::{self, tshark};

/// Connections of QUIC in both versions, with a Retry, and with a hello in several packets:
/// scripts/make-quic-pcap.
const QUIC: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/data/quic.pcap");

/// Writes the tables of messages of the recording. Returns the standard error.
fn write(lake: &Lake, options: &[&str]) -> String {
    let url = lake.url();
    let arguments = ["capture", "-r", RECORDING, "--to", &url, "--tables", "packets,dns,tls,http"];
    run(&[&arguments, options].concat()).success().stderr
}

/// Maximum bytes of a text.
const TEXT_BYTES_MAX: usize = 1024;

/// Returns the rows of a query, sorted.
fn rows(lake: &Lake, query: &str) -> Vec<Vec<String>> {
    let mut rows = lake.ask(lake.path(), &["sql", query]);
    rows.sort();
    rows
}

/// Returns tshark's fields for the packets of a display filter.
fn fields(filter: &str, fields: &[&str]) -> Vec<Vec<String>> {
    tshark(Path::new(RECORDING), &["-Y", filter], fields)
}

/// Splits the fields of a packet with several messages into those of each.
fn split(fields: &[String]) -> Vec<Vec<String>> {
    let messages = fields[0].split(',').count();
    let part = |field: &String, i: usize| field.split(',').nth(i).unwrap_or_default().to_owned();
    (0..messages).map(|i| fields.iter().map(|field| part(field, i)).collect()).collect()
}

/// Filter of packets without a VLAN tag. The recording has connections once more on a VLAN, where
/// they are other streams here, but not for tshark.
const UNTAGGED: &[&str] = &["not", "vlan"];

#[test]
fn dns_has_the_messages_that_tshark_prints() {
    let Some(lake) = Lake::or_skip() else { return };
    if !tools::present() {
        return;
    }
    let stderr = write(&lake, UNTAGGED);
    assert!(!stderr.contains("messages are missing"), "{stderr}");
    let names = [
        "dns.id",
        "dns.flags.response",
        "dns.flags.rcode",
        "dns.qry.name",
        "dns.qry.type",
        "dns.count.answers",
        "dns.a",
        "dns.aaaa",
    ];
    let mut expected: Vec<Vec<String>> = fields("dns && !icmp && !icmpv6 && !vlan", &names)
        .into_iter()
        .flat_map(|fields| split(&fields))
        .map(|mut fields| {
            let id = u16::from_str_radix(fields[0].trim_start_matches("0x"), 16).unwrap();
            fields[0] = id.to_string();
            fields[1] = if fields[1] == "1" { "response" } else { "query" }.into();
            fields[4] = match fields[4].as_str() {
                "1" => "A".into(),
                "28" => "AAAA".into(),
                other => other.into(),
            };
            let answers = fields.split_off(6).concat();
            fields.push(answers);
            fields
        })
        .collect();
    expected.sort();
    assert!(expected.len() > 20, "{expected:?}");
    let columns = "transaction_id, message, response_code, query, query_type, answer_count, answers";
    assert_eq!(rows(&lake, &format!("select {columns} from dns")), expected);
    let query =
        "select count(*) from dns where community_id is null or protocol not in (6, 17) or source_port = 0";
    assert_eq!(lake.numbers(query), [0]);
}

#[test]
fn tls_has_the_hellos_and_fingerprints_that_tshark_prints() {
    let Some(lake) = Lake::or_skip() else { return };
    if !tools::present() {
        return;
    }
    let stderr = write(&lake, &["-r", QUIC]);
    assert!(!stderr.contains("messages are missing"), "{stderr}");
    let names = [
        "tls.handshake.type",
        "tls.handshake.extensions_server_name",
        "tls.handshake.extensions_alpn_str",
        "tls.handshake.ja3",
        "tls.handshake.ja3s",
        "tls.handshake.ciphersuite",
        "tls.handshake.extensions.supported_version",
    ];
    let recordings = [RECORDING, QUIC].into_iter();
    let mut expected: Vec<Vec<String>> = recordings
        .flat_map(|recording| tshark(Path::new(recording), &["-Y", "tls.handshake.type in {1,2}"], &names))
        .map(|fields| {
            let is_client = fields[0] == "1";
            let number = |text: &str| u16::from_str_radix(text.trim_start_matches("0x"), 16).unwrap();
            let version = fields[6].split(',').filter(|text| !text.is_empty()).map(number).max();
            vec![
                if is_client { "client" } else { "server" }.into(),
                fields[1].clone(),
                fields[2].chars().take(TEXT_BYTES_MAX).collect(),
                if is_client { &fields[3] } else { &fields[4] }.clone(),
                if is_client { String::new() } else { number(&fields[5]).to_string() },
                if version == Some(0x0304) { "1.3" } else { "1.2" }.into(),
            ]
        })
        .collect();
    expected.sort();
    assert!(expected.len() > 12, "{expected:?}");
    let columns = "message, server_name, alpn, ja3, cipher_suite, version";
    assert_eq!(rows(&lake, &format!("select {columns} from tls")), expected);
    assert_eq!(
        rows(
            &lake,
            "select distinct protocol, ja4 similar to '[tq]1.*_.*_.*', ja4[1] from tls where ja4 is not null"
        ),
        [["17", "True", "q"], ["6", "True", "t"]]
    );
    assert_eq!(lake.numbers("select count(*) from tls where protocol = 17"), [10]);
}

#[test]
fn hellos_of_quic_without_their_keys_or_their_end_are_counted() {
    let Some(lake) = Lake::or_skip() else { return };
    let url = lake.url();
    let write = |options: &[&str]| {
        let arguments = ["capture", "-r", QUIC, "--to", &url, "--tables", "tls"];
        run(&[&arguments, options].concat()).success().stderr
    };
    // The keys of a server are those of the client's first packet.
    let stderr = write(&["udp src port 4433"]);
    assert!(stderr.contains("wrote 0 packets, "), "{stderr}");
    assert!(stderr.contains("messages are missing: gaps 4"), "{stderr}");
    let stderr = write(&["--snaplen", "100"]);
    assert!(stderr.contains("cut 18") && stderr.contains("wrote 0 packets, "), "{stderr}");
}

#[test]
fn http_has_the_heads_that_tshark_prints() {
    let Some(lake) = Lake::or_skip() else { return };
    if !tools::present() {
        return;
    }
    let _ = write(&lake, UNTAGGED);
    let names = [
        "http.request.method",
        "http.host",
        "http.request.uri",
        "http.user_agent",
        "http.response.code",
        "http.content_type",
        "http.content_length_header",
    ];
    let mut expected = fields("(http.request || http.response) && !vlan", &names);
    expected.sort();
    assert!(expected.len() > 5, "{expected:?}");
    let columns = "method, host, target, user_agent, status, content_type, content_length";
    assert_eq!(rows(&lake, &format!("select {columns} from http")), expected);
    let query = "select count(distinct community_id) = count(distinct source_port) from http where message = 'request'";
    assert_eq!(rows(&lake, query), [["True"]]);
}

#[test]
fn messages_of_cut_packets_are_counted() {
    let Some(lake) = Lake::or_skip() else { return };
    let stderr = write(&lake, &["--snaplen", "80"]);
    assert!(stderr.contains("messages are missing: cut "), "{stderr}");
}

#[test]
fn live_messages_are_those_of_the_recording() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let Some(lake) = Lake::or_skip() else { return };
    let url = lake.url();
    let options =
        ["--to", &url, "--sensor", "live", "--tables", "packets,dns,tls,http", "-Q", "in", "--json"];
    let capture = Capture::start(wire.right(), &options);
    let recorded: Vec<Vec<u8>> =
        packets(Path::new(RECORDING)).into_iter().map(|packet| packet.bytes).collect();
    send(&wire, &recorded);
    let _ = capture.finish().success();
    let _ = write(&lake, &["--sensor", "file"]);
    for table in ["dns", "tls", "http"] {
        let query = format!(
            "select count(*) filter (sensor = 'live'), count(*) filter (sensor = 'file'), count(distinct community_id) from {table}"
        );
        let [live, file, ids] = lake.numbers(&query)[..] else { panic!("three numbers") };
        assert!(live == file && ids > 0, "{table}: {live} {file} {ids}");
    }
}

#[test]
fn frames_and_macs_are_those_of_the_packets() {
    let Some(lake) = Lake::or_skip() else { return };
    let url = lake.url();
    let arguments = ["capture", "-r", RECORDING, "--to", &url, "--columns", "all", "--frames", "90"];
    let _ = run(&arguments).success();
    let recorded: Vec<Vec<u8>> =
        packets(Path::new(RECORDING)).into_iter().map(|packet| packet.bytes).collect();
    let found = rows(&lake, "select lower(hex(frame)), source_mac, destination_mac from packets");
    let octets = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>();
    let hexadecimal = |bytes: &[u8]| octets(bytes).concat();
    let mac = |bytes: &[u8]| octets(bytes).join(":");
    let mut expected: Vec<Vec<String>> = recorded
        .iter()
        .map(|frame| vec![hexadecimal(&frame[..frame.len().min(90)]), mac(&frame[6..12]), mac(&frame[..6])])
        .collect();
    expected.sort();
    assert_eq!(found, expected);
}
