//! `strait drops`: counts agree with those of the namespace, for each cause of a drop.

use std::collections::HashMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use lab::{End, Process, Wire, program_or_skip, root_or_skip, wait_until};
use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto, sendto, socket, sockopt};
use rustix::process::Signal;
use serde_json::Value;

use crate::rig::{LIMIT, await_open, count, failure, run, send, status, strait};
use crate::tools::{self, tshark};

const DISCARD: u16 = 9;
/// Network behind the right end (RFC 5737).
const BEYOND: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 7);

/// Starts `strait drops` at `end` and waits until it counts.
fn drops(end: &End, arguments: &[&str]) -> Process {
    let process = strait(end, &["drops"]).args(arguments).spawn().unwrap();
    assert!(await_open(process.id()), "{}{}", process.stdout(), process.stderr());
    process
}

/// Drops of one namespace in JSON objects.
#[derive(Default)]
struct Seen {
    rows: Vec<Value>,
}

impl Seen {
    fn of(text: &str, namespace: u64) -> Self {
        let objects = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let rows = objects.flat_map(|object| object["drops"].as_array().cloned().unwrap_or_default());
        Self { rows: rows.filter(|row| row["namespace"] == namespace).collect() }
    }

    /// Returns the packets that were dropped for this reason.
    fn packets(&self, reason: &str) -> u64 {
        self.rows_of(reason).map(|row| count(row, "packets")).sum()
    }

    fn rows_of<'a>(&'a self, reason: &'a str) -> impl Iterator<Item = &'a Value> {
        self.rows.iter().filter(move |row| row["reason"] == reason)
    }
}

/// Returns the inode number of the namespace.
fn namespace_of(end: &End) -> u64 {
    end.run(|| fs::metadata("/proc/thread-self/ns/net").unwrap().ino())
}

/// Returns a counter of /proc/net/snmp: a line of names and one of values, each after `group:`.
fn snmp(end: &End, group: &str, name: &str) -> u64 {
    let text = end.run(|| fs::read_to_string("/proc/thread-self/net/snmp").unwrap());
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(&format!("{group}: ")));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let at = names.split(' ').position(|word| word == name).unwrap();
    values.split(' ').nth(at).unwrap().parse().unwrap()
}

fn send_datagrams(from: &End, to: SocketAddr, packets: u64, ttl: u32) {
    from.run_in_order(|| {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        socket.set_ttl(ttl).unwrap();
        for _ in 0..packets {
            socket.send_to(&[7; 300], to).unwrap();
        }
    });
}

/// Sends TCP segments with a wrong checksum to the discard port.
fn send_broken_segments(from: &End, to: IpAddr, packets: u64) {
    let mut segment = [0; 20];
    segment[..4].copy_from_slice(&[0x10, 0, 0, DISCARD as u8]);
    (segment[12], segment[13]) = (5 << 4, 2);
    segment[16..18].copy_from_slice(&[0x12, 0x34]);
    from.run_in_order(|| {
        let socket = socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::TCP)).unwrap();
        for _ in 0..packets {
            sendto(&socket, &segment, SendFlags::empty(), &SocketAddr::new(to, 0)).unwrap();
        }
    });
}

/// Returns the reasons in the comments of a file, and how often each occurs.
fn comments(file: &Path) -> HashMap<String, u64> {
    let mut reasons = HashMap::new();
    for comment in tshark(file, &[], &["frame.comment"]).into_iter().flatten() {
        let reason = comment.strip_prefix("dropped: ").and_then(|rest| rest.split(' ').next());
        *reasons.entry(reason.unwrap_or_default().to_owned()).or_default() += 1;
    }
    reasons
}

#[test]
fn counts_agree_with_those_of_the_namespace() {
    let Some(wire) = Wire::builder().ipv4().or_skip().filter(|_| tools::present()) else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("drops.pcapng");
    let (left, right) = (wire.left(), wire.right());
    let address = right.ipv4();
    let route = ["route", "add", "203.0.113.0/24"];
    let _ = left.command("ip").args(route).args(["via", &address.to_string()]).run(LIMIT).unwrap().success();
    let _ = right.command("ip").args(route).args(["dev", "right"]).run(LIMIT).unwrap().success();
    right.run(|| fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap());
    let full = right.run(|| UdpSocket::bind((address, 0)).unwrap());
    sockopt::set_socket_recv_buffer_size(&full, 4096).unwrap();

    let file_name = file.to_str().unwrap();
    let monitor = drops(right, &["-i", "right", "--json", "--interval", "0.1", "-w", file_name]);
    send_datagrams(left, SocketAddr::new(address, DISCARD), 30, 64);
    send_datagrams(left, full.local_addr().unwrap(), 100, 64);
    send_datagrams(left, SocketAddr::new(BEYOND.into(), DISCARD), 40, 1);
    send_broken_segments(left, address, 50);
    let counted = [
        ("NO_SOCKET", "Udp", "NoPorts", "IPv4 udp", 30..=30),
        ("SOCKET_RCVBUFF", "Udp", "RcvbufErrors", "IPv4 udp", 1..=99),
        ("IP_INHDR", "Ip", "InHdrErrors", "IPv4 udp", 40..=40),
        ("TCP_CSUM", "Tcp", "InCsumErrors", "IPv4 tcp", 50..=50),
    ];
    let namespace = namespace_of(right);
    let seen = || Seen::of(&monitor.stdout(), namespace);
    let agree = || {
        let seen = seen();
        counted.iter().all(|(reason, group, name, _, expected)| {
            let own = snmp(right, group, name);
            expected.contains(&own) && seen.packets(reason) == own
        })
    };
    assert!(
        wait_until(LIMIT, agree),
        "{}{:?}",
        monitor.stdout(),
        counted.map(|(_, group, name, ..)| snmp(right, group, name))
    );
    let ended = monitor.interrupt(LIMIT).unwrap().success();
    let (seen, comments) = (Seen::of(&ended.text(), namespace), comments(&file));
    for (reason, group, name, protocol, _) in counted {
        let own = snmp(right, group, name);
        assert_eq!((seen.packets(reason), comments.get(reason)), (own, Some(&own)), "{reason}: {comments:?}");
        for row in seen.rows_of(reason) {
            assert_eq!(
                (row["interface"].as_str(), row["protocol"].as_str()),
                (Some("right"), Some(protocol)),
                "{row}"
            );
            assert!(row["function"].as_str().is_some_and(|name| !name.is_empty()), "{row}");
        }
    }
}

#[test]
fn drops_of_other_namespaces_are_counted_on_request_only() {
    const PACKETS: u64 = 25;
    let Some(wire) = Wire::builder().ipv4().or_skip() else { return };
    let (left, right) = (wire.left(), wire.right());
    let own = drops(left, &["--json", "--interval", "0.1"]);
    let all = drops(left, &["--json", "--interval", "0.1", "--all-namespaces"]);
    send_datagrams(left, SocketAddr::new(right.ipv4(), DISCARD), PACKETS, 64);
    let namespace = namespace_of(right);
    let counted = || Seen::of(&all.stdout(), namespace).packets("NO_SOCKET") == PACKETS;
    assert!(wait_until(LIMIT, counted), "{}", all.stdout());
    let seen = Seen::of(&all.interrupt(LIMIT).unwrap().success().text(), namespace);
    let ifindex = right.interface().index;
    for row in seen.rows_of("NO_SOCKET") {
        assert!(row["interface"].is_null() && row["ifindex"] == ifindex, "{row}");
    }
    let seen = Seen::of(&own.interrupt(LIMIT).unwrap().success().text(), namespace);
    assert!(seen.rows.is_empty(), "{:?}", seen.rows);
}

#[test]
fn only_the_packets_of_the_interface_are_counted() {
    const PACKETS: u64 = 20;
    let Some(wire) = Wire::builder().ipv4().or_skip() else { return };
    let right = wire.right();
    right.run(|| strait_os::netlink::Netlink::open().unwrap().set_up(1, true)).unwrap();
    let monitor = drops(right, &["-i", "right", "--json", "--interval", "0.1"]);
    send_datagrams(right, SocketAddr::new(Ipv4Addr::LOCALHOST.into(), DISCARD), 10, 64);
    send_datagrams(wire.left(), SocketAddr::new(right.ipv4(), DISCARD), PACKETS, 64);
    let namespace = namespace_of(right);
    let packets = || Seen::of(&monitor.stdout(), namespace).packets("NO_SOCKET");
    assert!(wait_until(LIMIT, || packets() >= PACKETS), "{}", monitor.stdout());
    let text = monitor.interrupt(LIMIT).unwrap().success().text();
    assert_eq!((Seen::of(&text, namespace).packets("NO_SOCKET"), snmp(right, "Udp", "NoPorts")), (20, 30));
}

/// The kernel shows no namespace of packets that a closed UDP socket had not read, but their
/// interface. Each namespace has an interface 1, its loopback.
#[test]
fn packets_without_a_namespace_are_those_of_no_own_interface() {
    const PACKETS: u64 = 50;
    let Some(wire) = Wire::builder().ipv4().or_skip() else { return };
    let (left, right) = (wire.left(), wire.right());
    for end in [left, right] {
        end.run(|| strait_os::netlink::Netlink::open().unwrap().set_up(1, true)).unwrap();
    }
    let own = drops(right, &["-i", "lo", "--json", "--interval", "0.1"]);
    let all = drops(right, &["--json", "--interval", "0.1"]);
    let unread = left.run(|| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    send_datagrams(left, unread.local_addr().unwrap(), PACKETS, 64);
    drop(unread);
    let unknown = || Seen::of(&all.stdout(), 0).rows.into_iter().filter(|row| row["ifindex"] == 1);
    assert!(
        wait_until(LIMIT, || unknown().map(|row| count(&row, "packets")).sum::<u64>() >= PACKETS),
        "{}",
        all.stdout()
    );
    assert!(unknown().all(|row| row["interface"].is_null()), "{}", all.stdout());
    send_datagrams(right, SocketAddr::new(Ipv4Addr::LOCALHOST.into(), DISCARD), 3, 64);
    let namespace = namespace_of(right);
    let marked = || Seen::of(&own.stdout(), namespace).packets("NO_SOCKET") == 3;
    assert!(wait_until(LIMIT, marked), "{}", own.stdout());
    let text = own.interrupt(LIMIT).unwrap().success().text();
    assert_eq!(Seen::of(&text, 0).rows, Vec::<Value>::new());
    let _ = all.interrupt(LIMIT).unwrap().success();
}

/// The kernel frees the other fragments of a dropped packet as if they were dropped as well.
#[test]
fn reassembled_packet_is_counted_once() {
    let Some(wire) = Wire::builder().ipv4().or_skip() else { return };
    let (left, right) = (wire.left(), wire.right());
    let monitor = drops(right, &["--json", "--interval", "0.1"]);
    left.run(|| {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        socket.send_to(&[7; 5000], (right.ipv4(), DISCARD)).unwrap();
    });
    let namespace = namespace_of(right);
    let is_seen = || Seen::of(&monitor.stdout(), namespace).packets("NO_SOCKET") > 0;
    assert!(wait_until(LIMIT, is_seen), "{}", monitor.stdout());
    let text = monitor.interrupt(LIMIT).unwrap().success().text();
    let packets = Seen::of(&text, namespace).packets("NO_SOCKET");
    assert_eq!((packets, snmp(right, "Udp", "NoPorts"), snmp(right, "Ip", "ReasmOKs")), (1, 1, 1));
    let unknown = Seen::of(&text, 0);
    let is_member = |row: &Value| row["function"].as_str().is_some_and(|name| name.contains("release_data"));
    assert!(!unknown.rows.iter().any(is_member), "{text}");
}

/// A sender that varies the type must not use up the places.
#[test]
fn packets_of_unknown_types_have_one_place() {
    const PACKETS: u16 = 60;
    let Some(wire) = Wire::builder().or_skip() else { return };
    let monitor = drops(wire.right(), &["-i", "right", "--json", "--interval", "0.1"]);
    let frame = |number: u16| {
        let mut frame = vec![0; 60];
        frame[..12].copy_from_slice(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1]);
        frame[12..14].copy_from_slice(&(0x8900 + number).to_be_bytes());
        frame
    };
    send(&wire, &(0..PACKETS).map(frame).collect::<Vec<_>>());
    let namespace = namespace_of(wire.right());
    let others = || {
        let rows = Seen::of(&monitor.stdout(), namespace).rows.into_iter();
        rows.filter(|row| row["reason"] == "UNHANDLED_PROTO")
    };
    let packets = || others().map(|row| count(&row, "packets")).sum::<u64>();
    assert!(wait_until(LIMIT, || packets() == u64::from(PACKETS)), "{}", monitor.stdout());
    for row in others() {
        assert_eq!(row["protocol"], "other");
    }
    let _ = monitor.interrupt(LIMIT).unwrap().success();
}

/// Packets between local sockets have no header of a network.
#[test]
fn packets_without_a_header_are_counted_beside_the_file() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("drops.pcapng");
    let right = wire.right();
    let monitor = drops(right, &["--json", "--interval", "0.1", "-w", file.to_str().unwrap()]);
    right.run(|| {
        let (one, other) = UnixDatagram::pair().unwrap();
        for _ in 0..7 {
            one.send(b"unread").unwrap();
        }
        drop(other);
    });
    let namespace = namespace_of(right);
    let own =
        |text: &str| Seen::of(text, namespace).rows.iter().map(|row| count(row, "packets")).sum::<u64>();
    assert!(wait_until(LIMIT, || own(&monitor.stdout()) >= 7), "{}", monitor.stdout());
    let text = monitor.interrupt(LIMIT).unwrap().success().text();
    let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    let missed = |name: &str| count(&last["missed"], name);
    assert!(missed("headerless") >= 7, "{text}");
    let written: u64 = if tools::present() { comments(&file).values().sum() } else { return };
    assert_eq!(written + missed("lost") + missed("headerless"), count(&last, "total"), "{text}");
}

/// A stopped reader leaves the ring full. The hash counts on.
#[test]
fn packets_without_room_in_the_ring_are_counted_as_lost() {
    const PACKETS: u64 = 5000;
    let Some(wire) = Wire::builder().ipv4().or_skip().filter(|_| tools::present()) else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("drops.pcapng");
    let right = wire.right();
    right.run(|| strait_os::netlink::Netlink::open().unwrap().set_up(1, true)).unwrap();
    let arguments = ["--json", "--interval", "0.1", "-s", "4096", "-w", file.to_str().unwrap()];
    let monitor = drops(right, &[&["-i", "lo"], &arguments[..]].concat());
    monitor.signal(Signal::STOP);
    let id = monitor.id().to_string();
    let is_stopped = || status(&id, "State").is_some_and(|state| state.starts_with('T'));
    assert!(wait_until(LIMIT, is_stopped));
    send_datagrams(right, SocketAddr::new(Ipv4Addr::LOCALHOST.into(), DISCARD), PACKETS, 64);
    assert!(wait_until(LIMIT, || snmp(right, "Udp", "NoPorts") == PACKETS));
    monitor.signal(Signal::CONT);
    let text = monitor.interrupt(LIMIT).unwrap().success().text();
    let seen = Seen::of(&text, namespace_of(right));
    assert_eq!(seen.packets("NO_SOCKET"), PACKETS, "{text}");
    let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    let (total, lost) = (count(&last, "total"), count(&last["missed"], "lost"));
    let written: u64 = comments(&file).values().sum();
    assert!(lost > 0 && written > 0 && written + lost == total, "{written} + {lost} = {total}");
}

#[test]
fn lines_of_packets_are_limited() {
    const PACKETS: u64 = 40;
    let Some(wire) = Wire::builder().ipv4().or_skip() else { return };
    let right = wire.right();
    let monitor = drops(right, &["-i", "right", "--packets", "--lines", "3", "--interval", "600"]);
    let port = SocketAddr::new(right.ipv4(), DISCARD);
    send_datagrams(wire.left(), port, PACKETS, 64);
    assert!(wait_until(LIMIT, || snmp(right, "Udp", "NoPorts") == PACKETS));
    let ended = monitor.interrupt(LIMIT).unwrap().success();
    let is_packet = |line: &&str| line.contains("192.0.2.2.9: UDP, length 300, dropped: NO_SOCKET at ");
    assert_eq!(ended.text().lines().filter(is_packet).count(), 3, "{}", ended.text());
    assert!(ended.text().contains("  40  NO_SOCKET "), "{}", ended.text());
    assert!(ended.stderr.contains("strait: 37 packets without a line: see --lines"), "{}", ended.stderr);
    assert!(ended.stderr.contains("the kernel dropped 40 packets at 1 place\n"), "{}", ended.stderr);
}

/// Capabilities belong to threads: the one that compresses the file must have none of the others.
#[test]
fn all_threads_have_dropped_their_capabilities() {
    const DAC_OVERRIDE: &str = "0000000000000002";
    let Some(wire) = Wire::builder().ipv4().or_skip() else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("drops.pcapng.zst");
    let arguments = ["--packets", "--interval", "600", "-w", file.to_str().unwrap()];
    let monitor = drops(wire.right(), &arguments);
    let port = SocketAddr::new(wire.right().ipv4(), DISCARD);
    send_datagrams(wire.left(), port, 1, 64);
    // A line shows that the loop runs.
    assert!(wait_until(LIMIT, || monitor.stdout().contains("NO_SOCKET")), "{}", monitor.stderr());
    let tasks = fs::read_dir(format!("/proc/{}/task", monitor.id())).unwrap();
    let of_task = |task: fs::DirEntry| {
        let text = fs::read_to_string(task.path().join("status")).unwrap();
        let value =
            |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
        (value("Name:"), value("CapPrm:"))
    };
    let tasks: Vec<_> = tasks.map(|task| of_task(task.unwrap())).collect();
    assert!(tasks.iter().any(|(name, _)| name == "compressor"), "{tasks:?}");
    assert!(tasks.iter().all(|(_, permitted)| permitted == DAC_OVERRIDE), "{tasks:?}");
    let _ = monitor.interrupt(LIMIT).unwrap().success();
}

#[test]
fn missing_privilege_is_one_line_with_the_remedy() {
    if !root_or_skip() || !program_or_skip("setpriv") {
        return;
    }
    let bare = ["--inh-caps=-all", "--bounding-set=-all", crate::rig::STRAIT, "drops"];
    let (code, line) = failure(&lab::Launch::new("setpriv").args(bare).run(LIMIT).unwrap());
    assert!(code == 3 && line.contains("needs CAP_BPF and CAP_PERFMON: run as root"), "{code} {line}");
}

#[test]
fn contradictory_options_are_refused() {
    for arguments in [&["drops", "-w", "-", "--json"][..], &["drops", "--packets", "--json"]] {
        assert_eq!(run(arguments).status.code(), Some(2), "{arguments:?}");
    }
    let (code, line) = failure(&run(&["drops", "-i", "no-such-if0"]));
    assert!(code == 2 && line.contains("no such interface"), "{code} {line}");
}
