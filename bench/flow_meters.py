"""Compares flow meters, and measures the table of packets: the CPU time of a million packets, user and system, all threads.

    python bench/flow_meters.py [--mib N] [--rounds N] [--dir DIR] [--bin DIR] [--save FILE] [CAPTURE]

Without CAPTURE it writes N MiB (default: 2048) of mixed traffic (mixed_traffic.py) to DIR (default: /var/tmp/strait-flow-meters),
which needs 1.3 times that, and which a later run uses again. Each program reads the capture from a file, one after the other, round
after round, each with time limits of flows of 15 s and 60 s and a table for a million of them. A missing program is left out.

    strait      strait capture -r --to file:DIR --tables flows: Parquet
    softflowd   sends NetFlow 9 to a socket of this script, which is read after its end
    nfpcapd     nfdump's files
    Suricata    flows in eve.json, without rules and protocols of applications
    Zeek        conn.log, without other scripts

Then the table `packets` alone with 8 and with 13 columns: packets for each CPU second, and bytes of Parquet for each packet. pyarrow
encodes the same columns from memory with the same encodings and compression: its CPU time has no reading of packets.
"""

import argparse
import os
import pathlib
import re
import resource
import shutil
import socket
import struct
import subprocess
import sys
import tempfile

import common
import mixed_traffic

common.use_tables_python()

ABOUT = (
    "CPU seconds of a million packets, user and system, all threads: flow meters that read a capture, and the table packets. "
    "pps_core: packets for each CPU second; bytes: Parquet bytes for each packet. pyarrow encodes the columns from memory."
)
# Least ratios of CPU time to Strait's, by contestant.
RATIOS = {"softflowd": 5, "nfpcapd": 5, "Suricata": 2, "Zeek": 10}
# Sets of columns: name for --columns, number of columns, least packets for each CPU second, most bytes for each packet.
COLUMNS = (("basic", 8, 3e6, 8), ("headers", 13, 2e6, 18))
SURICATA = """%YAML 1.1
---
vars: {{}}
outputs:
  - eve-log: {{enabled: yes, filetype: regular, filename: eve.json, types: [flow]}}
unix-command: {{enabled: no}}
flow: {{memcap: 1gb, hash-size: 1048576, prealloc: 10000}}
stream: {{memcap: 1gb, checksum-validation: no, inline: no, reassembly: {{memcap: 1gb, depth: 1}}}}
flow-timeouts:
  default: &limits {{new: 15, established: 15, closed: 0, bypassed: 15, emergency-new: 15, emergency-established: 15, emergency-closed: 0}}
  tcp: *limits
  udp: *limits
  icmp: *limits
app-layer:
  protocols:
{protocols}
"""


# Time limit for a datagram that softflowd has sent before it ended.
SINK_LIMIT_S = 2


def received_flows(sink):
    """Returns true if a datagram of the socket has flows: a set of NetFlow 9 with an identifier over 255 (RFC 3954, 5.3)."""
    while True:
        try:
            datagram, at = sink.recv(65536), 20
        except TimeoutError:
            return False
        while at + 4 <= len(datagram):
            identifier, length = struct.unpack_from("!HH", datagram, at)
            if identifier > 255:
                return True
            at += max(length, 4)


class Meters:
    """Flow meters that read one capture, each into a directory of its own."""

    def __init__(self, strait, capture, work):
        self.strait, self.capture, self.work = strait, capture, work
        self.skipped = {}

    def folder(self, name):
        """Returns an empty directory."""
        path = self.work / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        return path

    def find(self, contestant, name, fetched, remedy):
        path = common.find(name, fetched)
        if path is None and contestant not in self.skipped:
            self.skipped[contestant] = f"{name} is not installed: {remedy}"
            common.skip(contestant, self.skipped[contestant])
        return path

    def all(self):
        """Yields the name, CPU seconds and number of flows of each program. The number is None if the program has none."""
        for name, measure in (
            ("strait", self.measure_strait),
            ("softflowd", self.measure_softflowd),
            ("nfpcapd", self.measure_nfpcapd),
            ("Suricata", self.measure_suricata),
            ("Zeek", self.measure_zeek),
        ):
            found = measure()
            if found is None:
                continue
            if found[1] == 0:
                sys.exit(f"{name} has written no flow of {self.capture}")
            yield name, *found

    def measure_strait(self):
        command = [self.strait, "capture", "-r", self.capture, "--to", f"file:{self.folder('strait')}", "--tables", "flows"]
        seconds, log = common.run(command)
        found = re.search(r"([\d,]+) flows", log)
        return seconds, int(found[1].replace(",", "")) if found else 0

    def measure_softflowd(self):
        program = self.find("softflowd", "softflowd", "softflowd/usr/sbin/softflowd", "scripts/setup-programs softflowd")
        if not program:
            return None
        folder = self.folder("softflowd")
        limits = ["maxlife=60", "general=15", "tcp=15", "tcp.rst=1", "tcp.fin=1", "udp=15", "icmp=15"]
        options = [word for limit in limits for word in ("-t", limit)]
        options += ["-m", "1000000", "-v", "9", "-6", "-T", "vlan", "-p", folder / "pid", "-c", "none"]
        # A socket of this round alone. Datagrams over its buffer are lost.
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sink:
            sink.bind(("127.0.0.1", 0))
            sink.settimeout(SINK_LIMIT_S)
            target = f"127.0.0.1:{sink.getsockname()[1]}"
            seconds, log = common.run([program, "-d", "-r", self.capture, "-n", target, *options], env=common.environment(program))
            if not received_flows(sink):
                sys.exit(f"softflowd has sent no flow: {log}")
        return seconds, None

    def measure_nfpcapd(self):
        program = self.find("nfpcapd", "nfpcapd", "nfdump/usr/bin/nfpcapd", "scripts/setup-programs nfdump")
        if not program:
            return None
        command = [program, "-r", self.capture, "-w", self.folder("nfpcapd"), "-e", "60,15", "-B", "1048576"]
        seconds, log = common.run(command, env=common.environment(program))
        return seconds, sum(map(int, re.findall(r"Flows: (\d+)", log)))

    def measure_suricata(self):
        program = self.find("Suricata", "suricata", "suricata/usr/bin/suricata", "scripts/setup-programs suricata")
        if not program:
            return None
        folder, variables = self.folder("suricata"), common.environment(program)
        listed = subprocess.run([program, "--list-app-layer-protos"], capture_output=True, text=True, env=variables).stdout
        names = [line.strip() for line in listed.splitlines() if re.fullmatch(r"[a-z0-9-]+", line.strip())]
        off = "{enabled: no, tcp: {enabled: no}, udp: {enabled: no}}"
        (folder / "suricata.yaml").write_text(SURICATA.format(protocols="\n".join(f"    {name}: {off}" for name in names)))
        command = [program, "-r", self.capture, "-c", folder / "suricata.yaml", "-l", folder]
        command += ["-k", "none", "--runmode", "single", "--disable-detection"]
        seconds, log = common.run(command, env=variables)
        flows = (folder / "eve.json").read_bytes().count(b'"event_type":"flow"')
        if not flows:
            sys.exit(f"Suricata has written no flow: {log}")
        return seconds, flows

    def measure_zeek(self):
        remedy = "Debian has no package; install Zeek's and add its directory to PATH"
        program = self.find("Zeek", "zeek", "zeek/bin/zeek", remedy)
        if not program:
            return None
        folder = self.folder("zeek")
        seconds, _ = common.run([program, "-C", "-b", "-r", self.capture.resolve(), "base/protocols/conn"], cwd=folder)
        lines = (folder / "conn.log").read_bytes().splitlines()
        return seconds, sum(not line.startswith(b"#") for line in lines)


def measure_packets(strait, capture, folder, columns):
    """Returns CPU seconds and bytes of the table `packets`."""
    shutil.rmtree(folder, ignore_errors=True)
    command = [strait, "capture", "-r", capture, "--to", f"file:{folder}", "--tables", "packets", "--columns", columns]
    seconds, _ = common.run(command)
    return seconds, sum(path.stat().st_size for path in folder.glob("packets/**/*.parquet"))


def measure_pyarrow(folder, out):
    """Returns CPU seconds and bytes of pyarrow's encoding, in a process of its own."""
    text = subprocess.check_output([sys.executable, __file__, "--encode", folder, out], text=True)
    seconds, size = text.split()
    return float(seconds), int(size)


def encode(folder, out):
    """Encodes the rows of the table in memory as Strait does, and prints the CPU seconds and the size of the file."""
    import pyarrow
    import pyarrow.parquet

    pyarrow.set_cpu_count(1)
    pyarrow.set_io_thread_count(1)
    files = sorted(pathlib.Path(folder).glob("packets/**/*.parquet"))
    table = pyarrow.concat_tables(pyarrow.parquet.ParquetFile(file).read() for file in files).combine_chunks()
    differences = [name for name in ("time", "ip_id") if name in table.column_names]
    plain = ("source_port", "destination_port", "tcp_sequence", "tcp_acknowledgment")
    cpu_seconds = lambda: sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    before = cpu_seconds()
    pyarrow.parquet.write_table(
        table,
        out,
        compression="zstd",
        compression_level={name: 4 if name in plain else 1 for name in table.column_names},
        row_group_size=1 << 20,
        use_dictionary=[name for name in table.column_names if name not in (*plain, *differences)],
        column_encoding=dict.fromkeys(differences, "DELTA_BINARY_PACKED"),
    )
    print(cpu_seconds() - before, pathlib.Path(out).stat().st_size)


def measure(meters, packets, rounds):
    turns, flows, million = common.Turns(), {}, packets / 1e6
    for _ in range(rounds):
        for name, seconds, count in meters.all():
            turns.add(name, cpu_s_per_million=seconds / million)
            flows[name] = count
        for columns, *_ in COLUMNS:
            folder = meters.work / "packets"
            measured = (
                (f"strait, packets, {columns}", *measure_packets(meters.strait, meters.capture, folder, columns)),
                (f"pyarrow, {columns}, encoding only", *measure_pyarrow(folder, meters.work / "pyarrow.parquet")),
            )
            for name, seconds, size in measured:
                turns.add(name, cpu_s_per_million=seconds / million, pps_core=packets / seconds, bytes=size / packets)
    print("flows:", ", ".join(f"{name} {count:,}" for name, count in flows.items() if count is not None))
    return turns


def judge(turns):
    print()
    for columns, number, rate, size in COLUMNS:
        name = f"strait, packets, {columns}"
        millions = [value / 1e6 for value in turns.values(name, "pps_core")]
        turns.claim(f"packets, {number} columns: rate of a core", millions, rate / 1e6, "M/s", True)
        turns.claim(f"packets, {number} columns: size", turns.values(name, "bytes"), size, "bytes a packet", False)
    for name, bound in RATIOS.items():
        ratios = turns.ratios(name, "strait", "cpu_s_per_million") if name in turns.rounds else []
        turns.claim(f"flows: CPU time of {name}, to strait", ratios, bound, "x", True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("capture", nargs="?", type=pathlib.Path)
    parser.add_argument("--mib", type=float, default=2048)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", type=pathlib.Path, default=pathlib.Path("/var/tmp/strait-flow-meters"))
    parser.add_argument("--bin", type=pathlib.Path, default=common.ROOT / "target/release")
    parser.add_argument("--save", help="write the results to this file, as in bench/results/flow-meters.json")
    options = parser.parse_args()
    common.end_by_exception()
    common.private_directory(options.dir)
    capture = options.capture or mixed_traffic.prepare(options.dir, options.mib)[0]
    packets = int(subprocess.check_output(["capinfos", "-Tmr", "-c", capture], text=True).strip().split(",")[-1])
    print(f"{capture}: {packets:,} packets, {capture.stat().st_size / packets:.0f} bytes each")
    # The first program reads the file from memory too.
    with open(capture, "rb") as file:
        while file.read(1 << 24):
            pass
    work = pathlib.Path(tempfile.mkdtemp(dir=options.dir))
    try:
        meters = Meters(options.bin / "strait", capture, work)
        turns = measure(meters, packets, options.rounds)
    finally:
        common.remove(work)
    turns.show("cpu_s_per_million", "CPU seconds")
    turns.show("pps_core", "packets for each CPU second")
    turns.show("bytes", "Parquet bytes for each packet")
    judge(turns)
    if options.save:
        label = f"{packets} packets of {capture.stat().st_size // packets} bytes"
        turns.save(options.save, "flow-meters", ABOUT, label, meters.strait, meters.skipped)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--encode"]:
        encode(*sys.argv[2:])
    else:
        main()
