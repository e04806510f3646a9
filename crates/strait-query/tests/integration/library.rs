//! Predefined queries on traffic with a result for each, read from a capture and from tables.

use strait_table::packets::Columns;

use crate::lake::write_tables;
use crate::{Scene, printed, text};

/// Name, and the first lines of the result as CSV; all of them if the last line is empty.
const EXPECTED: [(&str, &[&str]); 14] = [
    (
        "top-talkers",
        &[
            "source,destination,flows,packets,bytes",
            "10.0.0.30,10.0.0.31,12,96,4080",
            "10.0.0.32,10.0.0.33,12,96,4080",
            "10.0.0.1,10.0.0.2,2,16,3640",
        ],
    ),
    (
        "top-services",
        &["protocol,port,flows,clients,servers,bytes", "6,8443,24,2,2,8160", "6,443,3,1,2,4000"],
    ),
    (
        "largest-flows",
        &[
            "start,source,source_port,destination,destination_port,protocol,bytes_sent,bytes_received,communityId",
            "2025-11-25T16:00:00Z,10.0.0.1,40000,10.0.0.2,443,6,300,1520,1:UWHKJ/x6OQ1YiVv4rIl0t3yhjg8=",
        ],
    ),
    ("traffic-by-minute", &["minute,packets,bytes", "2025-11-25T16:00:00Z,90,"]),
    (
        "new-destinations",
        &["destination,first_seen,flows,sources,bytes", "10.0.0.99,2025-11-25T18:00:00Z,1,1,360", ""],
    ),
    (
        "slow-handshakes",
        &[
            "destination,port,handshakes,fastest_ms,mean_ms,slowest_ms",
            "10.0.0.4,80,1,900.0,900.0,900.0",
            "10.0.0.2,443,2,10.0,15.0,20.0",
        ],
    ),
    (
        "retransmissions",
        &[
            "source,destination,packets,sent_again,received_again,percent",
            "10.0.0.5,10.0.0.6,7,1,0,14.29",
            "",
        ],
    ),
    ("zero-windows", &["receiver,sender,zero_windows,flows", "10.0.0.6,10.0.0.5,1,1", ""]),
    (
        "failed-connections",
        &[
            "destination,port,attempts,unanswered,refused,sources",
            "10.0.0.8,25,3,3,0,1",
            "10.0.0.9,25,3,0,3,1",
            "10.0.0.100,23,1,1,0,1",
        ],
    ),
    (
        "port-scans",
        &[
            "source,destination,protocol,ports,first_seen,last_seen",
            "10.0.0.10,10.0.0.11,6,25,2025-11-25T16:00:40Z,2025-11-25T16:00:40.024Z",
            "",
        ],
    ),
    ("host-scans", &["source,protocol,port,destinations,unanswered,flows", "10.0.0.12,6,23,25,25,25", ""]),
    (
        "beacons",
        &[
            "source,destination,port,connections,interval_seconds,deviation_percent",
            "10.0.0.30,10.0.0.31,8443,12,30.0,0.0",
            "",
        ],
    ),
    (
        "dns-failures",
        &[
            "query,query_type,failure,responses,clients,last_seen",
            "none.example,A,NXDOMAIN,2,1,2025-11-25T16:01:03.001Z",
            "",
        ],
    ),
    (
        "dns-unanswered",
        &[
            "server,query,query_type,queries,clients,last_seen",
            "10.0.0.53,lost.example,A,1,1,2025-11-25T16:01:04Z",
            "",
        ],
    ),
];

#[test]
fn predefined_queries_find_what_they_look_for() {
    let scene = Scene::new();
    let directory = scene.path("lake");
    write_tables(&scene.path("scenes.pcap"), &directory, "fr1", Columns::default());
    for (name, expected) in EXPECTED {
        let found = printed(&["--csv", "--run", name, &scene.capture()]);
        let lines: Vec<&str> = found.split('\n').take(expected.len()).collect();
        assert!(found.starts_with(&expected.join("\n")), "{name}: {lines:?}");
        assert_eq!(printed(&["--csv", "--run", name, &text(&directory)]), found, "{name}");
    }
}

#[test]
fn every_predefined_query_is_listed_with_its_sql() {
    let list = printed(&["--list"]);
    let names: Vec<&str> = list.lines().filter(|line| !line.is_empty() && !line.starts_with(' ')).collect();
    assert_eq!(names, EXPECTED.map(|(name, _)| name));
    assert!(list.contains("\n  select sourceAddress as source"), "{list}");
}
