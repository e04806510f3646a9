"""Compares queries of a capture: the CPU time of each program, user and system, with all of its threads and children.

    python bench/query_engines.py [--packets N] [--flows N] [--rounds N] [--dir DIR] [--bin DIR] [FILE]

Without FILE it generates a capture of N packets (default: 5,000,000) of about 600 bytes in N flows (default: 20,000) that overlap
in time. DIR needs twice the size of the capture; the last run's files in it are used again. `--bin` has strait and strait-query
(default: target/release and target/query/release). DuckDB is the module of this Python: scripts/setup-programs tables
installs one in ~/.cache/strait/programs/tables/bin/python. A missing program is left out. Programs take turns.

    talkers    pairs of addresses with the most bytes: from the capture by strait query and tshark, and from the table flows in
               Parquet, which strait capture --to has made of the capture, by strait query and DuckDB
    retrieve   the packets of one flow from the capture: found in the table flows and retrieved without and with an index; by
               strait query over the capture alone; by tcpdump and tshark
    write      a copy of the capture by strait capture -w, without and with --index, and by tcpdump: the cost of the index
"""

import argparse
import collections
import pathlib
import random
import re
import shutil
import statistics
import struct
import subprocess
import sys
import time

from common import ROOT, has_duckdb, run

TALKERS = (
    'select "sourceAddress", "destinationAddress", sum("octetDeltaCount" + "reverseOctetDeltaCount") as bytes '
    "from {} group by 1, 2 order by bytes desc limit 10"
)
DUCKDB = "import duckdb, sys; print(duckdb.sql(sys.argv[1]))"


def packet(flow, number):
    """Returns an Ethernet frame of TCP between 10.0.x.x and 10.1.x.x."""
    ends = (10 << 24 | flow // 8, 10 << 24 | 1 << 16 | flow % 251)
    ports = (20_000 + flow % 40_000, 443)
    payload = bytes(100 + (flow * 7 + number * 131) % 1000)
    if number % 2:
        ends, ports = ends[::-1], ports[::-1]
    tcp = struct.pack("!HHIIBBHHH", *ports, number * 1000, 1, 5 << 4, 16, 1000, 0, 0)
    ip = struct.pack("!BBHHHBBHII", 0x45, 0, 40 + len(payload), 0, 0, 64, 6, 0, *ends)
    return bytes(12) + b"\x08\x00" + ip + tcp + payload


def generate(path, packets, flows):
    """Writes a pcap file. Flows start one after the other, and about a hundred are active at a time."""
    start_ns = time.time_ns() // 10**9 * 10**9 - 3600 * 10**9
    each, active, rng = max(packets // flows, 1), [], random.Random(1)
    started = 0
    with open(path, "wb", buffering=1 << 20) as out:
        out.write(struct.pack("<IHHIIII", 0xA1B23C4D, 2, 4, 0, 0, 65535, 1))
        for number in range(packets):
            while len(active) < 100 and started < flows:
                active.append([started, 0])
                started += 1
            if not active:
                break
            at = rng.randrange(len(active))
            flow = active[at]
            frame = packet(*flow)
            now_ns = start_ns + number * 20_000
            out.write(struct.pack("<IIII", now_ns // 10**9, now_ns % 10**9, len(frame), len(frame)) + frame)
            flow[1] += 1
            if flow[1] == each:
                active[at] = active[-1]
                active.pop()


class Files:
    """Capture, tables and index in a directory, which a later run uses again."""

    def __init__(self, options):
        self.directory = pathlib.Path(options.dir)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.capture = options.file or self.directory / f"{options.packets}-{options.flows}.pcap"
        if not self.capture.exists():
            part = self.capture.with_suffix(".part")
            generate(part, options.packets, options.flows)
            part.rename(self.capture)
        self.lake = self.directory / f"{self.capture.name}.tables"
        self.index = pathlib.Path(f"{self.capture}.sidx")
        self.out = self.directory / "out.pcapng"

    def prepare(self, strait, query):
        """Makes the tables and the index, and prints the CPU time of both."""
        for path in (self.index, self.directory / "hidden.sidx"):
            path.unlink(missing_ok=True)
        shutil.rmtree(self.lake, ignore_errors=True)
        tables, _ = run([strait, "capture", "-r", self.capture, "--to", f"file:{self.lake}", "--tables", "flows"])
        index, _ = run([query, "--index", self.capture])
        size = self.capture.stat().st_size
        print(f"{self.capture}: {size / 1e9:.2f} GB, index {self.index.stat().st_size / 1e6:.2f} MB")
        print(f"CPU seconds once: table flows {tables:.2f}, index {index:.2f}")

    def flow(self, query):
        """Returns addresses, ports and community ID of a flow in the middle of the capture."""
        sql = "select * from flows order by flowStartNanoseconds, communityId"
        columns = "sourceAddress, destinationAddress, sourceTransportPort, destinationTransportPort, communityId"
        count = int(subprocess.check_output([query, "--csv", "select count(*) from flows", self.lake]).split()[1])
        sql = f"select {columns} from ({sql}) limit 1 offset {count // 2}"
        return subprocess.check_output([query, "--csv", sql, self.lake], text=True).splitlines()[1].split(",")


def talkers(files, query):
    whole = TALKERS.replace('"', "")
    yield "strait query, capture", [query, "--csv", whole.format("flows"), files.capture]
    if shutil.which("tshark"):
        yield "tshark, capture", ["tshark", "-n", "-q", "-z", "conv,ip", "-r", files.capture]
    yield "strait query, Parquet", [query, "--csv", whole.format("flows"), files.lake]
    if has_duckdb():
        parquet = f"read_parquet('{files.lake}/flows/**/*.parquet')"
        yield "DuckDB, Parquet", [sys.executable, "-c", DUCKDB, TALKERS.format(parquet)]


def retrieve(files, query):
    source, destination, source_port, destination_port, flow = files.flow(query)
    sql = f"select * from flows where communityId = '{flow}'"
    from_tables = [query, "--pcap", files.out, "--from", files.capture, sql, files.lake]
    yield "strait query, table and index", from_tables
    yield "strait query, table without index", from_tables
    yield "strait query, capture and index", [query, "--pcap", files.out, sql, files.capture]
    text = f"host {source} and host {destination} and port {source_port} and port {destination_port}"
    if shutil.which("tcpdump"):
        yield "tcpdump", ["tcpdump", "-n", "-r", files.capture, "-w", files.out, text]
    if shutil.which("tshark"):
        shown = f"ip.addr == {source} && ip.addr == {destination} && tcp.port == {source_port} && tcp.port == {destination_port}"
        yield "tshark", ["tshark", "-n", "-r", files.capture, "-w", files.out, "-Y", shown]


def write(files, strait):
    copy = [strait, "capture", "-r", files.capture, "-w", files.out]
    yield "strait capture -w", copy
    yield "strait capture -w --index", [*copy, "--index"]
    if shutil.which("tcpdump"):
        yield "tcpdump -w", ["tcpdump", "-n", "-r", files.capture, "-w", files.out]


def count_packets(query, path):
    """Returns the number of packets in a file."""
    return int(subprocess.check_output([query, "--csv", "select count(*) from packets", path]).split()[1])


def measure(files, query, contestants, rounds):
    times, notes, packets = collections.defaultdict(list), {}, {}
    hidden = files.directory / "hidden.sidx"
    for _ in range(rounds):
        for name, command in contestants:
            if "without index" in name:
                files.index.rename(hidden)
            files.out.unlink(missing_ok=True)
            seconds, text = run(command)
            if "without index" in name:
                hidden.rename(files.index)
            times[name].append(seconds)
            parts = re.search(r"(\d+ of \d+ parts)", text)
            if parts:
                notes[name] = parts[1]
            if files.out.exists():
                packets[name] = count_packets(query, files.out)
    print(f"\n{'program':<36}{'CPU s':>10}{'least':>10}{'most':>10}")
    for name, values in times.items():
        note = ", ".join(filter(None, [f"{packets[name]} packets" if name in packets else "", notes.get(name, "")]))
        print(f"{name:<36}{statistics.median(values):>10.3f}{min(values):>10.3f}{max(values):>10.3f}  {note}")
    if len(set(packets.values())) > 1:
        sys.exit("the programs have not retrieved the same number of packets")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=pathlib.Path)
    parser.add_argument("--packets", type=int, default=5_000_000)
    parser.add_argument("--flows", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", default="/var/tmp/strait-query-bench")
    parser.add_argument("--bin", type=pathlib.Path)
    options = parser.parse_args()
    strait = (options.bin or ROOT / "target/release") / "strait"
    query = (options.bin or ROOT / "target/query/release") / "strait-query"
    files = Files(options)
    files.prepare(strait, query)
    for contestants in (talkers(files, query), retrieve(files, query), write(files, strait)):
        measure(files, query, list(contestants), options.rounds)


if __name__ == "__main__":
    main()
