//! Every packet is attributed to the process that the senders themselves name: in the payload, or
//! by the port that they print.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use lab::{Process, Wire, program_or_skip};
use strait_capture::owners::Select;
use strait_capture::{Builder, Direction, ErrorKind, Path, Session};
use strait_packet::FlowKey;
use strait_packet::protocol::ip;

use crate::rig::send;

/// Roles of processes. Payloads have the identifier of their sender. A line `uses PORT PID` names a
/// process that uses a port, and so may have sent a packet without payload or receive one.
const ROLES: &str = include_str!("owners.py");
const LIMIT: Duration = Duration::from_mins(1);

/// Packet of the capture.
#[derive(Debug)]
struct Seen {
    flow: FlowKey,
    sent: bool,
    owner: Option<u32>,
    command: Option<String>,
    container: Option<String>,
    uid: Option<u32>,
    /// Sender, as the payload has it.
    claimed: Option<u32>,
}

/// Captures at the right end while `work` runs. Returns the packets of TCP and UDP.
fn capture(wire: &Wire, select: Option<Select>, work: impl FnOnce()) -> Option<Vec<Seen>> {
    let builder = Session::builder("right").owners(true).select(select).ring(64 << 20);
    capture_by(wire, builder, work)
}

fn capture_by(wire: &Wire, builder: Builder, work: impl FnOnce()) -> Option<Vec<Seen>> {
    let mut session = match wire.right().run(|| builder.open()) {
        Err(error) if error.kind() == ErrorKind::Refused => {
            lab::skip(error.to_string());
            return None;
        }
        session => session.unwrap(),
    };
    assert_eq!(session.path(), Path::Tap.name());
    let mut owners = session.owners().unwrap();
    let mut lane = session.take_lanes().remove(0);
    work();
    wire.right().run(|| session.stop()).unwrap();
    let mut seen = Vec::new();
    while let Some(mut batch) = lane.next_batch(Instant::now() + LIMIT).unwrap() {
        for frame in batch.frames() {
            let flow = FlowKey::of(frame.bytes).filter(|flow| [ip::TCP, ip::UDP].contains(&flow.protocol));
            let Some(flow) = flow else { continue };
            let found = owners.of(&frame).unwrap();
            let details = found.as_ref().and_then(|found| found.owner.details.as_ref());
            seen.push(Seen {
                flow,
                sent: frame.direction == Direction::Out,
                owner: found.as_ref().map(|found| found.owner.pid),
                command: details.map(|details| details.command.clone()),
                container: details.and_then(|details| Some(details.container.as_ref()?.id.clone())),
                uid: details.map(|details| details.uid),
                claimed: claim(frame.bytes),
            });
        }
    }
    let report = session.report(vec![lane.finish().unwrap()]);
    assert_eq!(report.capture.lost.total(), 0, "{report}");
    Some(seen)
}

/// Returns the number in `pid=NUMBER;`.
fn claim(bytes: &[u8]) -> Option<u32> {
    let at = bytes.windows(4).position(|window| window == b"pid=")?;
    let digits = bytes[at + 4..].split(|byte| *byte == b';').next()?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Checks that no packet has a wrong owner and that at least 99.9 % have one. `records` are the
/// outputs of the roles.
fn check(seen: &[Seen], records: &[String]) {
    let mut senders: HashMap<u16, HashSet<u32>> = HashMap::new();
    for line in records.iter().flat_map(|record| record.lines()) {
        if let ["uses", port, pid] = line.split(' ').collect::<Vec<_>>()[..] {
            senders.entry(port.parse().unwrap()).or_default().insert(pid.parse().unwrap());
        }
    }
    let possible = |port: u16| senders.get(&port).into_iter().flatten();
    let mut unknown = Vec::new();
    for packet in seen {
        let ports = (packet.flow.source.port, packet.flow.destination.port);
        let Some(owner) = packet.owner else {
            unknown.push(packet);
            continue;
        };
        let is_sender = match packet.claimed {
            Some(claimed) => claimed == owner,
            None => possible(ports.0).any(|pid| *pid == owner),
        };
        // Without a known sender, a received packet is attributed to its receiver.
        let is_receiver = !packet.sent && possible(ports.1).any(|pid| *pid == owner);
        assert!(is_sender || is_receiver, "wrong: {packet:?}");
    }
    assert!(unknown.len() * 1000 <= seen.len(), "{} of {}: {unknown:?}", unknown.len(), seen.len());
    for packet in seen.iter().filter(|packet| packet.owner.is_some()) {
        assert_eq!(
            packet.command.as_deref().map(|command| command.starts_with("python3")),
            Some(true),
            "{packet:?}"
        );
    }
}

fn wire() -> Option<Wire> {
    if !program_or_skip("python3") {
        return None;
    }
    Wire::builder().ipv4().or_skip()
}

/// A running server at the right end, and its port.
struct Server {
    process: Process,
    port: String,
}

impl Server {
    fn start(wire: &Wire, role: &str) -> Self {
        Self::start_at(wire, role, &wire.right().ipv4().to_string())
    }

    fn start_at(wire: &Wire, role: &str, address: &str) -> Self {
        let process = wire.right().command("python3").args(["-c", ROLES, role, address]).spawn().unwrap();
        process.wait_for_stdout("ready\n", LIMIT).unwrap();
        let printed = process.stdout();
        let port = printed.lines().find_map(|line| line.strip_prefix("port ")).unwrap().to_owned();
        Self { process, port }
    }

    /// Runs clients at the left end: `processes` with `rounds` each. Returns what they print.
    fn visit(&self, wire: &Wire, role: &str, processes: u32, rounds: u32) -> String {
        let address = wire.right().ipv4().to_string();
        let numbers = [processes, rounds].map(|number| number.to_string());
        let client = wire.left().command("python3").args(["-c", ROLES, role, &address, &self.port]);
        client.args(numbers).run(LIMIT).unwrap().success().text()
    }
}

/// Checks that a capture of these roles has at least `packets` packets, all with their owner.
fn attributed(server: &str, client: &str, processes: u32, rounds: u32, packets: usize) {
    let Some(wire) = wire() else { return };
    let mut records = Vec::new();
    let work = || {
        let server = Server::start(&wire, server);
        let printed = server.visit(&wire, client, processes, rounds);
        records.extend([server.process.stdout(), printed]);
    };
    let Some(seen) = capture(&wire, None, work) else { return };
    assert!(seen.len() >= packets, "{} packets", seen.len());
    check(&seen, &records);
}

#[test]
fn thousand_connections_of_short_lived_processes_have_their_owners() {
    attributed("prefork", "connect", 50, 20, 8000);
}

#[test]
fn processes_that_listen_on_one_port_are_told_apart() {
    attributed("reuseport", "connect", 10, 10, 800);
}

#[test]
fn process_that_inherits_a_connection_owns_what_it_sends() {
    attributed("greeting", "connect", 5, 10, 400);
}

#[test]
fn processes_that_send_datagrams_by_one_socket_are_told_apart() {
    attributed("udp", "send", 10, 20, 800);
}

#[test]
fn processes_that_use_one_port_in_turn_are_told_apart() {
    attributed("udp", "same_port", 20, 5, 200);
}

#[test]
fn sockets_older_than_the_capture_have_their_owners() {
    let Some(wire) = wire() else { return };
    for (role, client) in [("udp", "send"), ("greeting", "connect")] {
        let server = Server::start(&wire, role);
        let mut records = Vec::new();
        let work = || records.push(server.visit(&wire, client, 2, 5));
        let Some(seen) = capture(&wire, None, work) else { return };
        records.push(server.process.stdout());
        assert!(seen.len() >= 40, "{} packets", seen.len());
        check(&seen, &records);
        assert!(seen.iter().any(|packet| packet.owner == Some(server.process.id())), "{role}");
    }
}

/// Sends frames from the left end, and waits until all of them have arrived.
fn send_and_await(wire: &Wire, frames: &[Vec<u8>]) {
    let before = wire.right().stats().rx_packets;
    send(wire, frames);
    wire.await_arrival(before, frames.len() as u64);
}

/// Frames that no socket of this host sent are attributed to the socket that receives them.
#[test]
fn frames_from_elsewhere_belong_to_their_receiver() {
    let Some(wire) = wire() else { return };
    let [udp, tcp] = ["udp", "greeting"].map(|role| Server::start(&wire, role));
    let [to_udp, to_tcp] = [&udp, &tcp].map(|server| server.port.parse::<u16>().unwrap());
    let datagram = |to: u16| packet(&wire, 17, &[4000, to, 12, 0, 0, 0]);
    // Header length and flags of TCP are the seventh word.
    let segment = |flags: u16| packet(&wire, 6, &[4000, to_tcp, 0, 1, 0, 0, 0x5000 | flags, 1000, 0, 0]);
    let (syn, ack) = (segment(2), segment(16));
    let frames = [datagram(to_udp), datagram(1), ack.clone(), syn, ack];
    let Some(seen) = capture(&wire, None, || send_and_await(&wire, &frames)) else {
        return;
    };
    let received: Vec<_> = seen.iter().filter(|packet| !packet.sent).map(|packet| packet.owner).collect();
    let [udp, tcp] = [udp, tcp].map(|server| Some(server.process.id()));
    assert_eq!(received, [udp, None, None, tcp, tcp], "a connection has an owner from its SYN on");
}

/// A socket without an address would receive packets to every address of this host, but not those
/// that the host forwards or drops, and not those of a VLAN without an interface.
#[test]
fn packets_to_other_hosts_and_vlans_have_no_owner() {
    let Some(wire) = wire() else { return };
    let server = Server::start_at(&wire, "udp", "0.0.0.0");
    let port: u16 = server.port.parse().unwrap();
    let datagram = [4000, port, 12, 0, 0, 0];
    let ours = packet(&wire, 17, &datagram);
    let elsewhere = [[10, 99, 0, 2], [192, 0, 2, 1]].map(|to| packet_to(&wire, to, 17, &datagram));
    let tagged = [&ours[..12], &[0x81, 0, 0, 100], &ours[12..]].concat();
    let frames = [&[ours.clone(), tagged], &elsewhere[..], &[ours]].concat();
    for forwards in ["0", "1"] {
        wire.right().run(|| fs::write("/proc/sys/net/ipv4/ip_forward", forwards)).unwrap();
        let Some(seen) = capture(&wire, None, || send_and_await(&wire, &frames)) else {
            return;
        };
        let received = seen.iter().filter(|packet| !packet.sent && packet.flow.destination.port == port);
        let owners: Vec<_> = received.map(|packet| packet.owner).collect();
        let own = Some(server.process.id());
        assert_eq!(owners, [own, None, None, None, own], "forwarding {forwards}");
    }
}

/// Sockets of IPv6 without an address, which receive IPv4 packets too.
#[test]
fn ipv6_sockets_without_an_address_own_packets_to_this_host_only() {
    let Some(wire) = Wire::builder().ipv4().ipv6().or_skip() else { return };
    // Processes of their own: while a thread of this one starts a child, both have its sockets.
    let [udp, tcp] = ["udp", "greeting"].map(|role| Server::start_at(&wire, role, "::"));
    let [to_udp, to_tcp] = [&udp, &tcp].map(|server| server.port.parse::<u16>().unwrap());
    let IpAddr::V6(own) = wire.right().ipv6() else { panic!("an IPv6 address") };
    let elsewhere = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
    let datagram = |to: u16| [4000, to, 12, 0, 0, 0];
    let syn = [4000, to_tcp, 0, 1, 0, 0, 0x5002, 1000, 0, 0];
    let frames = [
        packet_to_ipv6(&wire, own, 17, &datagram(to_udp)),
        packet_to_ipv6(&wire, own, 6, &syn),
        packet(&wire, 17, &datagram(to_udp)),
        packet_to_ipv6(&wire, own, 17, &datagram(1)),
        packet_to_ipv6(&wire, elsewhere, 17, &datagram(to_udp)),
        packet_to(&wire, [192, 0, 2, 1], 17, &datagram(to_udp)),
    ];
    let Some(seen) = capture(&wire, None, || send_and_await(&wire, &frames)) else {
        return;
    };
    let received = seen.iter().filter(|packet| !packet.sent && packet.flow.source.port == 4000);
    let owners: Vec<_> = received.map(|packet| packet.owner).collect();
    let [udp, tcp] = [udp, tcp].map(|server| Some(server.process.id()));
    assert_eq!(owners, [udp, tcp, udp, None, None, None]);
}

/// With a filter that rejects its first packet, a connection has no owner of an earlier one.
#[test]
fn connection_with_a_rejected_start_has_the_owner_of_its_socket() {
    let Some(wire) = wire() else { return };
    let server = Server::start(&wire, "greeting");
    let to: u16 = server.port.parse().unwrap();
    let ack = packet(&wire, 6, &[4000, to, 0, 1, 0, 0, 0x5010, 1000, 0, 0]);
    let closed = packet(&wire, 6, &[4000, 1, 0, 1, 0, 0, 0x5010, 1000, 0, 0]);
    let filter = "tcp[tcpflags] & tcp-syn == 0";
    let builder = Session::builder("right").owners(true).ring(64 << 20).filter(filter);
    let Some(seen) = capture_by(&wire, builder, || send_and_await(&wire, &[ack, closed])) else {
        return;
    };
    let received: Vec<_> = seen.iter().filter(|packet| !packet.sent).map(|packet| packet.owner).collect();
    assert_eq!(received, [Some(server.process.id()), None]);
}

/// A process that had used its socket before changes its name and its effective user.
#[test]
fn changed_user_and_name_of_a_process_are_reported() {
    let Some(wire) = wire() else { return };
    for (role, uid) in [("effective", 65534), ("permanent", 65533)] {
        let server = Server::start(&wire, role);
        let Some(seen) = capture(&wire, None, || drop(server.visit(&wire, "send", 1, 2))) else { return };
        let id = server.process.id();
        let own: Vec<_> = seen.iter().filter(|packet| packet.claimed == Some(id)).collect();
        assert_eq!(own.len(), 4, "{seen:?}");
        for packet in own {
            assert_eq!((packet.owner, packet.uid), (Some(id), Some(uid)), "{role}");
            assert_eq!(packet.command.as_deref(), Some("renamed"), "{role}");
        }
    }
}

/// Returns the frame of an IPv4 packet with these words after its header, to the right end, from an
/// address without a host.
fn packet(wire: &Wire, protocol: u8, words: &[u16]) -> Vec<u8> {
    let IpAddr::V4(address) = wire.right().ipv4() else { panic!("an IPv4 address") };
    packet_to(wire, address.octets(), protocol, words)
}

fn packet_to_ipv6(wire: &Wire, to: Ipv6Addr, protocol: u8, words: &[u16]) -> Vec<u8> {
    let IpAddr::V6(address) = wire.right().ipv6() else { panic!("an IPv6 address") };
    let mut from = address.octets();
    from[15] = 77;
    let mut frame = [wire.right().mac(), wire.left().mac()].concat();
    frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 2 * words.len() as u8, protocol, 64]);
    frame.extend(from.into_iter().chain(to.octets()));
    frame.extend(words.iter().flat_map(|word| word.to_be_bytes()));
    frame
}

fn packet_to(wire: &Wire, to: [u8; 4], protocol: u8, words: &[u16]) -> Vec<u8> {
    let IpAddr::V4(address) = wire.right().ipv4() else { panic!("an IPv4 address") };
    let [a, b, c, _] = address.octets();
    let mut frame = [wire.right().mac(), wire.left().mac()].concat();
    let len = 20 + 2 * words.len() as u8;
    frame.extend([8, 0, 0x45, 0, 0, len, 0, 0, 0x40, 0, 64, protocol, 0, 0, a, b, c, 77]);
    frame.extend(to);
    let sum = frame[14..34].chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum::<u32>();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame.extend(words.iter().flat_map(|word| word.to_be_bytes()));
    frame
}

#[test]
fn selected_process_alone_is_captured() {
    let Some(wire) = wire() else { return };
    let [one, other] = ["udp", "greeting"].map(|role| Server::start(&wire, role));
    let id = one.process.id();
    let select = Some(Select::Process(id.to_string()));
    let Some(seen) = capture(&wire, select, || {
        one.visit(&wire, "send", 2, 5);
        other.visit(&wire, "connect", 2, 5);
    }) else {
        return;
    };
    assert_eq!(seen.len(), 40, "datagrams and answers");
    assert!(seen.iter().all(|packet| packet.owner == Some(id)), "{seen:?}");
    for (name, expected) in [("python3", 40), ("python2", 0)] {
        let select = Some(Select::Process(name.to_owned()));
        let seen = capture(&wire, select, || drop(one.visit(&wire, "send", 2, 5))).unwrap();
        assert_eq!(seen.len(), expected, "{name}");
    }
}

/// A container is a process in namespaces and in a cgroup that has the container's identifier.
#[test]
fn selected_container_alone_is_captured() {
    const ID: &str = "5712a17f00d5712a17f00d5712a17f00d5712a17f00d5712a17f00d5712a17f0";
    let Some(wire) = wire() else { return };
    let Some(cgroup) = Cgroup::make(&format!("docker-{ID}.scope")) else { return };
    let [inside, outside] = ["udp", "udp"].map(|role| Server::start(&wire, role));
    cgroup.move_in(inside.process.id());
    let work = || {
        for server in [&inside, &outside] {
            server.visit(&wire, "send", 2, 5);
        }
    };
    let Some(seen) = capture(&wire, None, work) else { return };
    for packet in &seen {
        let expected = (packet.owner == Some(inside.process.id())).then(|| ID.to_owned());
        assert_eq!(packet.container, expected, "{packet:?}");
    }
    assert!(seen.iter().any(|packet| packet.container.is_some()));
    let selected = capture(&wire, Some(Select::Container(ID[..12].to_owned())), work).unwrap();
    assert_eq!(selected.len(), 40, "{selected:?}");
    assert!(selected.iter().all(|packet| packet.owner == Some(inside.process.id())), "{selected:?}");
    // A user to whom a cgroup is delegated makes others below it with any name.
    std::os::unix::fs::chown(&cgroup.0, Some(65534), None).unwrap();
    let seen = capture(&wire, None, work).unwrap();
    assert!(seen.iter().all(|packet| packet.container.is_none()), "{seen:?}");
    let select = Select::Container(ID[..12].to_owned());
    let Err(error) = wire.right().run(|| Session::builder("right").select(Some(select)).open()) else {
        panic!("it opened");
    };
    assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
    drop(inside);
}

/// Cgroup of version 2, removed at the end.
struct Cgroup(PathBuf);

impl Cgroup {
    fn make(name: &str) -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let mount = mounts.lines().find(|line| line.split(' ').nth(2) == Some("cgroup2"));
        let Some(root) = mount.and_then(|line| line.split(' ').nth(1)) else {
            lab::skip("the cgroups of version 2 are not mounted");
            return None;
        };
        let directory = PathBuf::from(root).join(name);
        match fs::create_dir(&directory) {
            Err(error) => {
                lab::skip(format!("make a cgroup: {error}"));
                None
            }
            Ok(()) => Some(Self(directory)),
        }
    }

    fn move_in(&self, pid: u32) {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // A process that was just killed may still be in it.
        let removed = lab::wait_until(LIMIT, || fs::remove_dir(&self.0).is_ok());
        assert!(removed || std::thread::panicking(), "{}", self.0.display());
    }
}

#[test]
fn other_paths_are_refused_with_a_remedy() {
    let Some(wire) = wire() else { return };
    let builder = Session::builder("right").owners(true).path(Path::V3);
    let Err(error) = wire.right().run(|| builder.open()) else { panic!("it opened") };
    assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
    assert!(error.to_string().contains("use --path tap"), "{error}");
}
