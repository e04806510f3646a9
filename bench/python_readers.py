"""Measures readers of a capture file in Python: the CPU time of a million packets, and the packets that each has read.

    python bench/python_readers.py FILE [ROUNDS]     (default: 5)

Readers take turns, each in a process of its own. Those whose package is missing are left out: pip install scapy dpkt
pcapy-ng pyarrow, and the wheel of `scripts/wheel`. scapy's PcapReader parses each packet; the others return its bytes, and
strait's batches the fields of its headers.
"""

import collections
import resource
import statistics
import subprocess
import sys


def strait_batches(file):
    import strait

    return sum(len(batch) for batch in strait.read(file))


def strait_batches_of_bytes(file):
    import strait

    return sum(len(batch) for batch in strait.read(file, columns="time", frames=262144))


def strait_frames(file):
    import strait

    return sum(1 for _ in strait.read(file).frames())


def dpkt_reader(file):
    import dpkt

    with open(file, "rb") as stream:
        return sum(1 for _ in dpkt.pcap.UniversalReader(stream))


def pcapy_reader(file):
    import pcapy

    reader, packets = pcapy.open_offline(file), 0
    while reader.next()[0] is not None:
        packets += 1
    return packets


def scapy_raw_reader(file):
    from scapy.utils import RawPcapReader

    return sum(1 for _ in RawPcapReader(file))


def scapy_reader(file):
    import scapy.layers.all
    from scapy.utils import PcapReader

    return sum(1 for _ in PcapReader(file))


READERS = [
    strait_batches,
    strait_batches_of_bytes,
    strait_frames,
    dpkt_reader,
    pcapy_reader,
    scapy_raw_reader,
    scapy_reader,
]


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def measure(name, file):
    """Prints the packets and the CPU time of one reader, without that of the import of its package."""
    reader = globals()[name]
    try:
        reader("/dev/null")
    except ImportError as error:
        sys.exit(f"left out: {error}")
    except Exception:
        # No reader takes an empty file.
        pass
    before = cpu_seconds()
    packets = reader(file)
    print(packets, cpu_seconds() - before)


def main(file, rounds):
    times, packets, missing = collections.defaultdict(list), {}, {}
    for _ in range(rounds):
        for name in (reader.__name__ for reader in READERS):
            if name in missing:
                continue
            command = [sys.executable, __file__, "--measure", name, file]
            finished = subprocess.run(command, capture_output=True, text=True)
            if finished.returncode:
                missing[name] = finished.stderr.strip().splitlines()[-1]
                continue
            count, seconds = finished.stdout.split()
            packets[name] = int(count)
            times[name].append(float(seconds) * 1e6 / max(int(count), 1))
    print(f"{'reader':<24}{'packets':>12}{'CPU s per million':>20}{'least':>10}{'most':>10}")
    for name, values in times.items():
        median, least, most = statistics.median(values), min(values), max(values)
        print(f"{name:<24}{packets[name]:>12,}{median:>20.3f}{least:>10.3f}{most:>10.3f}")
    for name, reason in missing.items():
        print(f"{name:<24}{reason}")
    if len(set(packets.values())) > 1:
        sys.exit("the readers have not read the same number of packets")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(sys.argv[2], sys.argv[3])
    elif len(sys.argv) > 1:
        main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 5)
    else:
        sys.exit(__doc__)
