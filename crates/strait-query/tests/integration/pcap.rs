//! Packets of selected rows in a pcapng file.

use std::path::Path;

use crate::lake::write_tables;
use crate::{Scene, printed, refused, run, text};

/// Writes the packets that a query selects, and returns the rows of `sql` over them.
fn selected(scene: &Scene, query: &str, sql: &str) -> String {
    let path = text(&scene.path("selected.pcapng"));
    let output = run(&["--pcap", &path, query, &scene.capture()]);
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
    printed(&["--csv", sql, &path])
}

#[test]
fn packets_of_selected_flows_are_written_unchanged() {
    let scene = Scene::new();
    let sql = "select * from packets order by time";
    let found = selected(&scene, "select * from flows where sourceTransportPort = 40000", sql);
    let expected = "select * from packets where 40000 in (source_port, destination_port) order by time";
    assert_eq!(found, printed(&["--csv", expected, &scene.capture()]));
    assert_eq!(found.lines().count(), 1 + 8);
}

#[test]
fn packets_of_selected_messages_and_times_are_written() {
    let scene = Scene::new();
    let count = "select count(*) as n from packets";
    assert_eq!(selected(&scene, "select * from dns where transaction_id = 2", count), "n\n2\n");
    // Intervals of a flow that overlap select a packet once.
    let flows = "select flowStartNanoseconds, flowEndNanoseconds, communityId from flows \
        where sourceTransportPort in (40000, 44000)";
    let halves = "select flowStartNanoseconds, flowStartNanoseconds as flowEndNanoseconds, communityId from flows \
        where sourceTransportPort = 44000";
    assert_eq!(selected(&scene, &format!("{flows} union all {halves}"), count), "n\n15\n");
    // Both scans send at the same time, and only one of both is selected by its flow.
    let scan = "select time from packets where destination_port = 1003";
    assert_eq!(selected(&scene, scan, count), "n\n2\n");
    let scan = "select * from flows where destinationTransportPort = 1003";
    assert_eq!(selected(&scene, scan, count), "n\n1\n");
    assert_eq!(selected(&scene, "select time from packets where length = 1", count), "n\n0\n");
}

#[test]
fn a_name_of_a_compressed_file_is_refused() {
    let scene = Scene::new();
    for name in ["out.pcapng.zst", "out.GZ", "out.lz4", "out.pcap.xz", "out.bz2"] {
        let path = scene.path(name);
        let message = refused(&["--pcap", &text(&path), "select * from packets", &scene.capture()], 2);
        let start = "--pcap writes no compressed file: give ";
        assert!(message.starts_with(start) && message.contains(name), "{message}");
        assert!(!path.exists(), "{name}");
    }
}

#[test]
fn a_result_does_not_replace_a_file_of_its_query() {
    let scene = Scene::new();
    let (capture, sql) = (scene.capture(), "select * from flows where sourceTransportPort = 40000");
    let before = std::fs::read(&capture).unwrap();
    let linked = text(&scene.path("linked.pcap"));
    std::os::unix::fs::symlink(&capture, &linked).unwrap();
    for (option, out) in [("--pcap", &capture), ("--pcap", &linked), ("--output", &capture)] {
        let message = refused(&[option, out, sql, &capture], 2);
        assert_eq!(message, format!("{option} would replace {capture}: write to another file"));
    }
    let message = refused(&["--pcap", &capture, "--from", &capture, "select 1"], 2);
    assert!(message.starts_with("--pcap would replace"), "{message}");
    assert_eq!(std::fs::read(&capture).unwrap(), before);
}

#[test]
fn packets_of_rows_of_tables_come_from_other_files() {
    let scene = Scene::new();
    let (path, directory) = (text(&scene.path("selected.pcapng")), scene.path("lake"));
    write_tables(&scene.path("scenes.pcap"), &directory, "fr1", strait_table::packets::Columns::default());
    let sql = "select * from flows where sourceTransportPort = 40000";
    let output = run(&["--pcap", &path, "--from", &scene.capture(), sql, &text(&directory)]);
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
    let count = printed(&["--csv", "select count(*) as n from packets", &path]);
    assert_eq!(count, "n\n8\n");
    let missing = text(&scene.path("missing.pcap"));
    let output = run(&["--pcap", &path, "--from", &missing, sql, &text(&directory)]);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && errors.contains(&format!("open {missing}: ")), "{errors}");
}

#[test]
fn rows_without_a_time_and_tables_without_packets_are_refused() {
    let scene = Scene::new();
    let path = text(&scene.path("selected.pcapng"));
    let message = refused(&["--pcap", &path, "select length from packets", &scene.capture()], 2);
    assert!(message.starts_with("--pcap: select the column time"), "{message}");
    let directory = scene.path("lake");
    write_tables(&scene.path("scenes.pcap"), &directory, "fr1", strait_table::packets::Columns::default());
    let message = refused(&["--pcap", &path, "select * from packets", &text(&directory)], 2);
    assert_eq!(message, "--pcap: give the capture files of the packets by --from FILE");
    assert!(!Path::new(&path).exists());
}
