"""Writes a small capture for each of ten sensors: python make_captures.py DIRECTORY

Each file has some traffic of the network of its sensor, 10.N.0.0/16. A scan of hosts, a scan of ports and a beacon are spread
over several sensors, so that only a query of all tables finds them.
"""

import pathlib
import struct
import sys

SENSORS = 10
# 2026-11-25 16:00:00 UTC.
START_NS = 1_795_622_400 * 10**9
SECOND = 10**9
MILLISECOND = 10**6
FIN, SYN, ACK = 1, 2, 16


def address(text):
    return bytes(map(int, text.split(".")))


class Capture:
    """Packets of a sensor. An end is an address and a port."""

    def __init__(self):
        self.packets = []

    def ip(self, time_ns, source, destination, protocol, payload):
        head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(payload), 0, 0, 64, protocol, 0)
        ethernet = bytes.fromhex("020000000002 020000000001 0800")
        frame = ethernet + head + address(source[0]) + address(destination[0]) + payload
        self.packets.append((time_ns, frame))

    def tcp(self, time_ns, source, destination, sequence, acknowledgment, flags, size=0):
        head = struct.pack("!HHIIBBHHH", source[1], destination[1], sequence, acknowledgment, 5 << 4, flags, 1000, 0, 0)
        self.ip(time_ns, source, destination, 6, head + bytes(size))

    def udp(self, time_ns, source, destination, payload):
        head = struct.pack("!HHHH", source[1], destination[1], 8 + len(payload), 0)
        self.ip(time_ns, source, destination, 17, head + payload)

    def connection(self, time_ns, client, server, round_trip_ns, size, lost=False):
        """A connection on which the server sends `size` bytes in one segment, twice if the first one is lost."""
        opened_ns = time_ns + round_trip_ns
        self.tcp(time_ns, client, server, 100, 0, SYN)
        self.tcp(time_ns + round_trip_ns // 2, server, client, 500, 101, SYN | ACK)
        self.tcp(opened_ns, client, server, 101, 501, ACK)
        self.tcp(opened_ns + MILLISECOND, client, server, 101, 501, ACK, 100)
        self.tcp(opened_ns + 2 * MILLISECOND, server, client, 501, 201, ACK, size)
        if lost:
            self.tcp(opened_ns + SECOND, server, client, 501, 201, ACK, size)
        closed_ns = opened_ns + 2 * SECOND
        self.tcp(closed_ns, client, server, 201, 501 + size, FIN | ACK)
        self.tcp(closed_ns + MILLISECOND, server, client, 501 + size, 202, FIN | ACK)
        self.tcp(closed_ns + 2 * MILLISECOND, client, server, 202, 502 + size, ACK)

    def name(self, time_ns, client, server, number, text, code):
        """A query of DNS for the record A of a name, and a response without records."""
        labels = b"".join(bytes([len(label)]) + label.encode() for label in text.split("."))
        question = labels + bytes([0, 0, 1, 0, 1])
        for flags, after_ns, ends in (0x100, 0, (client, server)), (0x8180 | code, MILLISECOND, (server, client)):
            head = struct.pack("!HHHHHH", number, flags, 1, 0, 0, 0)
            self.udp(time_ns + after_ns, *ends, head + question)

    def write(self, path):
        """Writes a pcap file with times in nanoseconds."""
        with open(path, "wb") as out:
            out.write(struct.pack("<IHHIIII", 0xA1B23C4D, 2, 4, 0, 0, 65535, 1))
            for time_ns, frame in sorted(self.packets, key=lambda packet: packet[0]):
                out.write(struct.pack("<IIII", time_ns // SECOND, time_ns % SECOND, len(frame), len(frame)) + frame)


def local(capture, number):
    """Traffic that each sensor has of its own network: web, and a name that does not exist."""
    client = f"10.{number}.0.1"
    web = (f"192.0.2.{number}", 443)
    capture.connection(START_NS, (client, 40_000), web, 10 * number * MILLISECOND, 100 * number, lost=number == 3)
    resolver = (f"10.{number}.0.53", 53)
    capture.name(START_NS + 10 * SECOND, (client, 44_000), resolver, 1, "www.example", 0)
    capture.name(START_NS + 11 * SECOND, (client, 44_000), resolver, 2, "missing.example", 3)


def spread(captures):
    """Traffic that several sensors see a part of."""
    for number, capture in enumerate(captures, 1):
        for host in range(3):
            time_ns = START_NS + (20 + host) * SECOND + number * MILLISECOND
            capture.tcp(time_ns, ("203.0.113.9", 43_000), (f"10.{number}.0.{100 + host}", 23), 100, 0, SYN)
    for port in range(1000, 1024):
        time_ns = START_NS + 30 * SECOND + port * MILLISECOND
        captures[4 + port % 2].tcp(time_ns, ("203.0.113.10", 43_000), ("10.5.0.7", port), 100, 0, SYN)
    for number in range(12):
        time_ns = START_NS + (100 + 30 * number) * SECOND
        client = ("10.4.0.30", 50_000 + number)
        captures[3 if number % 2 else 6].connection(time_ns, client, ("192.0.2.99", 8443), 5 * MILLISECOND, 10)
    # Two hours later.
    captures[7].connection(START_NS + 7200 * SECOND, ("10.8.0.1", 40_001), ("192.0.2.200", 443), 5 * MILLISECOND, 50)


def main():
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} DIRECTORY")
    directory = pathlib.Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    captures = [Capture() for _ in range(SENSORS)]
    for number, capture in enumerate(captures, 1):
        local(capture, number)
    spread(captures)
    for number, capture in enumerate(captures, 1):
        capture.write(directory / f"s{number:02}.pcap")


if __name__ == "__main__":
    main()
