"""Writes a capture of mixed traffic: python bench/mixed_traffic.py FILE MIB

TCP with HTTP/1 and TLS hellos, with handshakes, retransmissions, FIN and RST; DNS, streams of UDP, ICMP, ARP, fragments; IPv4
and IPv6; one VLAN tag or two. Sessions overlap, some pause for longer than a flow may be idle, and the time passes the hour. The
same size gives the same file.

Fragments are between addresses in FRAGMENTS, packets with two VLAN tags in TWO_TAGS, as some programs do not read these.
Checksums are 0.
"""

import ipaddress
import os
import pathlib
import random
import struct
import sys
import tempfile

import common

SECOND = 10**9
# 2026-11-25 16:50:00 UTC.
START_NS = 1_795_625_400 * SECOND
SESSIONS_PER_SECOND = 200
FRAGMENTS = ("172.16.", "2001:db8:f::")
TWO_TAGS = ("172.20.", "2001:db8:a::")
FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16
TCP, UDP, ICMP, ICMP6, FRAGMENT = 6, 17, 1, 58, 44
NOISE = random.Random(7).randbytes(1 << 17)
SEGMENT = 1440


def noise(size, at):
    """Returns pseudo-random bytes."""
    at = at * 61 % (len(NOISE) - 1500)
    return NOISE[at : at + size]


class Session:
    """Packets between a client and a server. Direction 0 is from the client."""

    def __init__(self, number, rng, start_ns, prefixes=("10.", "2001:db8:c::")):
        self.rng, self.now_ns, self.packets = rng, start_ns, []
        self.is_v6 = rng.random() < 0.25
        self.number, self.id = number, rng.randrange(65536)
        client, server = self.addresses(number, prefixes)
        self.ends = (client + server, server + client)
        port = 1024 + number * 7 % 60_000
        self.ports = (port, 443)
        tags = b""
        if prefixes is TWO_TAGS:
            tags = struct.pack("!HHHH", 0x88A8, 100 + number % 8, 0x8100, 7)
        elif number % 5 == 0:
            tags = struct.pack("!HH", 0x8100, 10 + number % 50)
        kind = struct.pack("!H", 0x86DD if self.is_v6 else 0x0800)
        macs = bytes.fromhex("020000000002"), bytes.fromhex("020000000001")
        self.link = tuple(to + by + tags + kind for to, by in (macs, macs[::-1]))
        self.round_trip_ns = rng.randrange(200_000, 80_000_000)

    def addresses(self, number, prefixes):
        if self.is_v6:
            client = ipaddress.IPv6Address(prefixes[1]).packed[:12] + struct.pack("!I", number + 1)
            return client, ipaddress.IPv6Address(prefixes[1] + "5:0:0").packed[:14] + struct.pack("!H", number % 300 + 1)
        head = bytes(map(int, prefixes[0].strip(".").split(".")))
        client = head + struct.pack("!I", number + 1)[len(head) :]
        return client, head[:1] + bytes([head[1] + 1 if len(head) > 1 else 250, number % 3, number % 100 + 1])

    def wait(self, low_ns, high_ns):
        self.now_ns += self.rng.randrange(low_ns, high_ns)

    def ip(self, way, protocol, payload, fragment=0):
        """Adds a packet. `fragment` is the field of flags and offset of IPv4."""
        self.id = self.id + 1 & 0xFFFF
        if self.is_v6:
            head = struct.pack("!IHBB", 0x60000000, len(payload), protocol, 64 - way * 7)
        else:
            length = 20 + len(payload)
            head = struct.pack("!BBHHHBBH", 0x45, 0, length, self.id, fragment, 64 - way * 7, protocol, 0)
        frame = self.link[way] + head + self.ends[way] + payload
        self.packets.append((self.now_ns, frame))

    def tcp(self, way, flags, payload=b"", sequence=None):
        """Adds a segment and advances the sequence number; a given `sequence` repeats a segment."""
        at = self.sequence[way] if sequence is None else sequence
        ports = self.ports if way == 0 else self.ports[::-1]
        acknowledgment = self.sequence[1 - way] if flags & ACK else 0
        window = 64_000 - (self.id * 37 & 0x3FFF)
        head = struct.pack("!HHIIBBHHH", *ports, at, acknowledgment, 5 << 4, flags, window, 0, 0)
        self.ip(way, TCP, head + payload)
        if sequence is None:
            self.sequence[way] = at + len(payload) + (1 if flags & (SYN | FIN) else 0) & 0xFFFFFFFF

    def udp(self, way, payload):
        ports = self.ports if way == 0 else self.ports[::-1]
        self.ip(way, UDP, struct.pack("!HHHH", *ports, 8 + len(payload), 0) + payload)

    def connect(self):
        self.sequence = [self.rng.randrange(1 << 32), self.rng.randrange(1 << 32)]
        for way, flags in (0, SYN), (1, SYN | ACK), (0, ACK):
            self.tcp(way, flags)
            self.wait(self.round_trip_ns // 4, self.round_trip_ns // 2)

    def close(self):
        if self.rng.random() < 0.15:
            self.tcp(self.rng.randrange(2), RST | ACK)
            return
        for way, flags in (0, FIN | ACK), (1, FIN | ACK), (0, ACK):
            self.tcp(way, flags)
            self.wait(1000, self.round_trip_ns)

    def exchange(self, request, response, size):
        """A request, and a response of `size` bytes more in segments, each second one acknowledged, a few sent again."""
        self.tcp(0, PSH | ACK, request)
        self.wait(self.round_trip_ns, 2 * self.round_trip_ns)
        self.tcp(1, PSH | ACK, response)
        for number in range(size // SEGMENT + 1):
            self.wait(10_000, 2_000_000)
            before = self.sequence[1]
            length = min(SEGMENT, size - number * SEGMENT)
            body = noise(length, self.number + number)
            self.tcp(1, ACK, body)
            if self.rng.random() < 0.01:
                self.wait(self.round_trip_ns * 2, self.round_trip_ns * 3)
                self.tcp(1, ACK, body, before)
            if number % 2:
                self.tcp(0, ACK)


def http(session):
    session.ports = (session.ports[0], 80)
    session.connect()
    for number in range(session.rng.randrange(1, 4)):
        size = int(session.rng.paretovariate(1.1) * 2000)
        size = min(size, 400_000)
        request = f"GET /{session.number}/{number} HTTP/1.1\r\nHost: www{session.number % 90}.example\r\nUser-Agent: mixed\r\n\r\n"
        response = f"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {size}\r\n\r\n"
        session.exchange(request.encode(), response.encode(), size)
        if session.rng.random() < 0.02:
            session.wait(16 * SECOND, 20 * SECOND)
    session.close()


def client_hello(name, seed):
    """Returns the record of a hello of TLS 1.2 with a server name."""
    name = name.encode()
    server_name = struct.pack("!HHHBH", 0, len(name) + 5, len(name) + 3, 0, len(name)) + name
    groups = struct.pack("!HHHHH", 10, 6, 4, 29, 23)
    extensions = server_name + groups
    suites = struct.pack("!HHH", 0x1301, 0xC02F, 0xC030)
    body = b"\x03\x03" + noise(32, seed) + b"\x00" + struct.pack("!H", len(suites)) + suites + b"\x01\x00"
    return record(1, body + struct.pack("!H", len(extensions)) + extensions)


def server_hello(seed):
    return record(2, b"\x03\x03" + noise(32, seed) + b"\x00" + struct.pack("!HB", 0xC02F, 0))


def record(kind, body):
    message = bytes([kind]) + len(body).to_bytes(3, "big") + body
    return b"\x16\x03\x01" + struct.pack("!H", len(message)) + message


def tls(session):
    session.connect()
    name = f"host{session.number % 700}.example"
    size = min(int(session.rng.paretovariate(1.05) * 3000), 600_000)
    session.exchange(client_hello(name, session.number), server_hello(session.number), size)
    session.close()


def dns(session):
    session.ports = (session.ports[0], 53)
    labels = b"\x03www" + bytes([6]) + b"h%05d" % (session.number % 100_000) + b"\x07example\x00"
    question = labels + struct.pack("!HH", 28 if session.number % 3 == 0 else 1, 1)
    number = session.number & 0xFFFF
    session.udp(0, struct.pack("!HHHHHH", number, 0x100, 1, 0, 0, 0) + question)
    session.wait(session.round_trip_ns, 2 * session.round_trip_ns)
    answer = struct.pack("!HHHIH", 0xC00C, 1, 1, 300, 4) + bytes([192, 0, 2, session.number % 250])
    session.udp(1, struct.pack("!HHHHHH", number, 0x8180, 1, 1, 0, 0) + question + answer)


def stream(session):
    session.ports = (session.ports[0], 4000 + session.number % 100)
    for number in range(session.rng.randrange(4, 120)):
        way = 1 if session.rng.random() < 0.7 else 0
        session.udp(way, noise(session.rng.choice((30, 90, 160, 500, 1200)), session.number + number))
        session.wait(100_000, 40_000_000)


def echo(session):
    protocol, kinds = (ICMP6, (128, 129)) if session.is_v6 else (ICMP, (8, 0))
    for number in range(session.rng.randrange(1, 6)):
        for way in 0, 1:
            head = struct.pack("!BBHHH", kinds[way], 0, 0, session.number & 0xFFFF, number)
            session.ip(way, protocol, head + noise(56, session.number))
            session.wait(session.round_trip_ns, 2 * session.round_trip_ns)


def refused(session):
    """A datagram, and the ICMP error with its head."""
    session.ports = (session.ports[0], 9)
    session.udp(0, b"anybody")
    sent = session.packets[-1][1][len(session.link[0]) :]
    session.wait(session.round_trip_ns, 2 * session.round_trip_ns)
    protocol, head = (ICMP6, b"\x01\x04") if session.is_v6 else (ICMP, b"\x03\x03")
    session.ip(1, protocol, head + bytes(6) + sent)


def fragments(session):
    """A datagram of 3,000 to 6,000 bytes in fragments of 1,400."""
    payload = (NOISE * 2)[: session.rng.randrange(3000, 6000)]
    datagram = struct.pack("!HHHH", session.ports[0], 5000, 8 + len(payload), 0) + payload
    number = session.rng.randrange(65536)
    for at in range(0, len(datagram), 1400):
        part, more = datagram[at : at + 1400], at + 1400 < len(datagram)
        if session.is_v6:
            session.ip(0, FRAGMENT, struct.pack("!BBHI", UDP, 0, at | more, number) + part)
        else:
            session.id = number - 1
            session.ip(0, UDP, part, more << 13 | at // 8)
        session.wait(1000, 100_000)


def arp(session):
    body = struct.pack("!HHBBH", 1, 0x0800, 6, 4, 1) + bytes(6) + bytes([10, 0, 0, 1]) + bytes(6) + bytes([10, 0, 0, 2])
    session.packets.append((session.now_ns, bytes.fromhex("ffffffffffff0200000000010806") + body + bytes(18)))


# Kinds of sessions with their weights, and the addresses of the special ones.
KINDS = ((http, 30), (tls, 30), (dns, 24), (stream, 8), (echo, 3), (refused, 2), (fragments, 1), (arp, 1), (stream, 1))
PREFIXES = {6: FRAGMENTS, 8: TWO_TAGS}


def sessions(rng, number, start_ns):
    """Returns the packets of one session."""
    chosen = rng.choices(range(len(KINDS)), [weight for _, weight in KINDS])[0]
    prefixes = [PREFIXES[chosen]] if chosen in PREFIXES else []
    session = Session(number, rng, start_ns, *prefixes)
    KINDS[chosen][0](session)
    return session.packets


def write(file, bytes_min):
    """Writes to a path or descriptor a pcap file of about `bytes_min` bytes with times in nanoseconds, each once. Returns the number of packets."""
    rng, pending, number, written, last_ns, packets = random.Random(1), [], 0, 24, 0, 0
    second_ns = START_NS
    with open(file, "wb", buffering=1 << 20) as out:
        out.write(struct.pack("<IHHIIII", 0xA1B23C4D, 2, 4, 0, 0, 65535, 1))
        while written < bytes_min or pending:
            if written < bytes_min:
                for _ in range(SESSIONS_PER_SECOND):
                    pending.extend(sessions(rng, number, second_ns + rng.randrange(SECOND)))
                    number += 1
            second_ns += SECOND
            pending.sort()
            ready = len(pending)
            while ready and pending[ready - 1][0] >= second_ns:
                ready -= 1
            for now_ns, frame in pending[:ready]:
                last_ns = max(now_ns, last_ns + 1)
                out.write(struct.pack("<IIII", last_ns // SECOND, last_ns % SECOND, len(frame), len(frame)) + frame)
                written += 16 + len(frame)
            packets += ready
            del pending[:ready]
    return packets


def prepare(directory, mib):
    """Returns the path of a capture of this size in the directory, and whether this call has written it."""
    common.private_directory(directory)
    path = pathlib.Path(directory) / f"mixed-{mib:g}.pcap"
    if path.is_file() and not path.is_symlink():
        return path, False
    # mkstemp opens with O_EXCL and O_NOFOLLOW.
    descriptor, part = tempfile.mkstemp(suffix=".part", dir=directory)
    try:
        write(descriptor, mib * 2**20)
        os.rename(part, path)
    except BaseException:
        pathlib.Path(part).unlink(missing_ok=True)
        raise
    return path, True


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    print(write(sys.argv[1], float(sys.argv[2]) * 2**20), "packets")
