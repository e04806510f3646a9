"""Compares tables of a large capture with tshark, capinfos and nfdump, field by field, and exits with 1 if they differ.

    python bench/compare_volume.py [--gib N] [--dir DIR] [--bin DIR] [--keep]

Writes a capture of N GiB (default: 10) of mixed traffic (mixed_traffic.py) to DIR (default: /var/tmp/strait-volume), which needs 1.3
times that, reads it by `strait capture -r --to` of DIR given by --bin (default: target/release), and asks DuckDB. Each packet has
the fields that tshark prints: the time joins them. Each pair of endpoints has the sums and times of the packets that tshark
prints, and of the flows that nfpcapd stores; bench/README.md names the columns that are not compared. Permitted differences have a
name and are counted. A capture that DIR already has is used again, and kept.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import common
import mixed_traffic

common.use_tables_python()
import duckdb

# Fields of tshark. Several may have the value of a column: that of IPv4 or IPv6, TCP or UDP, outer or only tag.
FIELDS = (
    "frame.time_epoch frame.len frame.cap_len eth.type vlan.etype vlan.id ieee8021ad.id ip.src ip.dst ip.proto ip.ttl ip.id ip.len "
    "ip.flags.mf ip.frag_offset ipv6.src ipv6.dst ipv6.nxt ipv6.hlim ipv6.plen ipv6.fraghdr.nxt ipv6.fraghdr.ident ipv6.fraghdr.offset "
    "ipv6.fraghdr.more tcp.srcport tcp.dstport tcp.flags tcp.seq_raw tcp.ack_raw tcp.window_size_value udp.srcport udp.dstport "
    "icmp.type icmp.code icmpv6.type icmpv6.code"
).split()
# Packets after which tshark forgets its state, which would need gigabytes.
STATE_PACKETS_MAX = "500000"
# Protocols that tshark reads. Dissectors of payload cost time, and those of tunnels, which a random port selects, replace the fields
# of the outer header.
ENABLED = set(
    "frame eth ethertype vlan ieee8021ad arp ip ipv6 ipv6.hopopts ipv6.dstopts ipv6.routing ipv6.fraghdr tcp udp icmp icmpv6".split()
)
OPTIONS = (
    "ip.defragment:FALSE ipv6.defragment:FALSE tcp.desegment_tcp_streams:FALSE tcp.analyze_sequence_numbers:FALSE "
    "udp.process_info:FALSE tcp.try_heuristic_first:FALSE udp.try_heuristic_first:FALSE"
).split()
# Rows of tshark as the table `packets` has them. tshark has offsets of fragments in units of 8 bytes.
REFERENCE = """
    create table reference as select
        replace("frame.time_epoch", '.', '')::bigint as time,
        "frame.len"::bigint as length,
        "frame.cap_len"::bigint as captured_length,
        coalesce(nullif(try_cast("vlan.etype" as bigint), 0), try_cast("eth.type" as bigint)) as ether_type,
        coalesce("ieee8021ad.id", "vlan.id")::bigint as vlan,
        case when "ieee8021ad.id" is not null then "vlan.id"::bigint end as inner_vlan,
        coalesce("ip.src", "ipv6.src") as source_address,
        coalesce("ip.dst", "ipv6.dst") as destination_address,
        coalesce("ip.proto", "ipv6.fraghdr.nxt", "ipv6.nxt")::bigint as protocol,
        coalesce("ip.ttl", "ipv6.hlim")::bigint as ttl,
        coalesce("ip.id", "ipv6.fraghdr.ident")::bigint as ip_id,
        case when "ipv6.fraghdr.nxt" is not null then "ipv6.fraghdr.offset"::bigint * 8
             when "ip.flags.mf" in ('1', 'True') or "ip.frag_offset"::bigint > 0 then "ip.frag_offset"::bigint * 8 end as fragment_offset,
        coalesce("tcp.srcport", "udp.srcport")::bigint as source_port,
        coalesce("tcp.dstport", "udp.dstport")::bigint as destination_port,
        "tcp.flags"::bigint as tcp_flags,
        "tcp.seq_raw"::bigint as tcp_sequence,
        "tcp.ack_raw"::bigint as tcp_acknowledgment,
        "tcp.window_size_value"::bigint as tcp_window,
        coalesce("ip.len"::bigint, "ipv6.plen"::bigint + 40) as octets,
        coalesce("icmp.type"::bigint * 256 + "icmp.code"::bigint, "icmpv6.type"::bigint * 256 + "icmpv6.code"::bigint) as icmp
    from read_csv('{path}', delim = '\t', header = false, auto_detect = false, quote = '', escape = '', nullstr = '', columns = {columns})
"""
COLUMNS = (
    "length captured_length ether_type vlan inner_vlan source_address destination_address source_port destination_port protocol "
    "tcp_flags tcp_sequence tcp_acknowledgment tcp_window ttl ip_id fragment_offset"
).split()
# Differences of a column of packets that are permitted: name, columns, condition on r (tshark) and p (strait).
PERMITTED = (
    (
        "tshark has the ports of the packet in an ICMP error",
        ("source_port", "destination_port"),
        "p.protocol in (1, 58) and p.{column} is null",
    ),
)

# Packets and octets of a direction. Fragments have no ports, ICMP has its type and code.
DIRECTED = """
    create table {name} as select protocol, source, destination, source_port, destination_port, icmp,
        sum(packets)::bigint as packets, sum(octets)::bigint as octets, bit_or(flags)::bigint as flags, max(vlan)::bigint as vlan
    from ({rows}) group by all
"""
# First and last packet of both directions.
PAIRED = """
    create table {name}_times as select protocol, icmp,
        least((source, source_port), (destination, destination_port)) as one, greatest((source, source_port), (destination, destination_port)) as other,
        min(first) as first, max(last) as last
    from ({rows}) group by all
"""
TSHARK_FLOWS = """
    select protocol, source_address as source, destination_address as destination, case when {whole} then coalesce(source_port, 0) else 0 end as source_port,
        case when {whole} then coalesce(destination_port, 0) else 0 end as destination_port, case when {whole} then icmp end as icmp,
        1 as packets, octets, case when {whole} then coalesce(tcp_flags, 0) else 0 end as flags, vlan, time as first, time as last
    from reference where protocol is not null
""".format(whole="fragment_offset is null and protocol in (6, 17, 1, 58)")
# tshark has the ports of the packet in an ICMP error.
TSHARK_FLOWS = TSHARK_FLOWS.replace("coalesce(source_port, 0)", "case when protocol in (6, 17) then source_port else 0 end").replace(
    "coalesce(destination_port, 0)", "case when protocol in (6, 17) then destination_port else 0 end"
)
STRAIT_FLOWS = """
    select protocolIdentifier::bigint as protocol, sourceAddress as source, destinationAddress as destination,
        coalesce(sourceTransportPort, 0)::bigint as source_port, coalesce(destinationTransportPort, 0)::bigint as destination_port,
        icmpTypeCode::bigint as icmp, packetDeltaCount as packets, octetDeltaCount as octets, coalesce(tcpControlBits, 0)::bigint as flags, vlanId as vlan,
        epoch_ns(flowStartNanoseconds) as first, epoch_ns(flowEndNanoseconds) as last
    from flows
    union all
    select protocolIdentifier, destinationAddress, sourceAddress, coalesce(destinationTransportPort, 0), coalesce(sourceTransportPort, 0),
        icmpTypeCode, reversePacketDeltaCount, reverseOctetDeltaCount, coalesce(reverseTcpControlBits, 0), vlanId,
        epoch_ns(flowStartNanoseconds), epoch_ns(flowEndNanoseconds)
    from flows where reversePacketDeltaCount > 0
"""
NFDUMP_FLOWS = """
    select trim(protocol)::bigint as protocol, trim(source) as source, trim(destination) as destination,
        case when trim(protocol) in ('6', '17') then trim(source_port)::bigint else 0 end as source_port,
        case when trim(protocol) in ('6', '17') then trim(destination_port)::bigint else 0 end as destination_port,
        case when trim(protocol) in ('1', '58') then split_part(trim(destination_port), '.', 1)::bigint * 256 + split_part(trim(destination_port), '.', 2)::bigint end as icmp,
        trim(packets)::bigint as packets, trim(octets)::bigint as octets,
        {flags} as flags, null as vlan, replace(trim(first), '.', '')::bigint as first, replace(trim(first), '.', '')::bigint + replace(trim(duration), '.', '')::bigint as last
    from nfdump_rows
"""
FLAGS = {"F": 1, "S": 2, "R": 4, "P": 8, "A": 16, "U": 32, "E": 64, "C": 128}
# nfdump 1.7.1 prints wrong milliseconds of the last packet (%ter): the duration has them.
NFDUMP_COLUMNS = "first duration protocol source source_port destination destination_port packets octets flags".split()
NFDUMP_FORMAT = "fmt:%tsr\t%td\t%pr\t%sa\t%sp\t%da\t%dp\t%pkt\t%byt\t%flg"


class Comparison:
    """Counts of compared values, permitted differences and faults."""

    def __init__(self):
        self.faults, self.permitted, self.compared = [], {}, 0

    def equal(self, text, found, expected):
        self.compared += 1
        if found != expected:
            self.faults.append(f"{text}: {found}, expected {expected}")

    def permit(self, name, count):
        self.permitted[name] = self.permitted.get(name, 0) + count

    def report(self):
        print(f"compared {self.compared:,} values and sums of columns")
        for name, count in self.permitted.items():
            print(f"permitted: {name}: {count:,}")
        for fault in self.faults:
            print(f"DIFFERENT {fault}")
        return 1 if self.faults else 0


def numbers(database, query):
    return database.execute(query).fetchone()


def read_tshark(database, capture, log):
    """Streams the fields of all packets from tshark into a table. tshark's errors go to the file `log`."""
    options = [word for option in OPTIONS for word in ("-o", option)]
    listed = subprocess.check_output(["tshark", "-G", "protocols"], stderr=subprocess.DEVNULL, text=True)
    names = [line.split("\t")[2] for line in listed.splitlines()]
    options += [word for name in names if name not in ENABLED for word in ("--disable-protocol", name)]
    fields = [word for field in FIELDS for word in ("-e", field)]
    command = ["tshark", "-n", "-r", capture, "-M", STATE_PACKETS_MAX, *options, "-T", "fields", "-E", "occurrence=f", *fields]
    columns = "{" + ", ".join(f"'{field}': 'varchar'" for field in FIELDS) + "}"
    with open(log, "wb") as errors, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors) as process:
        database.execute(REFERENCE.format(path=f"/dev/fd/{process.stdout.fileno()}", columns=columns))
    if process.returncode:
        sys.exit(f"tshark: {log.read_text(errors='replace')}")


def read_tables(database, strait, capture, lake):
    """Writes the tables, and returns the ledger."""
    shutil.rmtree(lake, ignore_errors=True)
    command = [strait, "capture", "-r", capture, "--to", f"file:{lake}", "--sensor", "volume", "--json"]
    ledger = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    for table in "packets", "flows", "ledger":
        files = f"read_parquet('{lake}/{table}/**/*.parquet', hive_partitioning = true)"
        database.execute(f"create view {table} as select * from {files}")
    return ledger


def compare_counts(result, database, capture, ledger):
    """Compares the numbers of packets and bytes of all programs."""
    text = subprocess.check_output(["capinfos", "-Tmr", "-c", "-d", capture], text=True)
    packets, octets = map(int, text.strip().split(",")[1:])
    result.equal("packets: rows, capinfos", numbers(database, "select count(*), sum(length)::bigint from packets"), (packets, octets))
    result.equal("packets: rows, tshark", numbers(database, "select count(*), sum(length)::bigint from reference"), (packets, octets))
    counts = (packets, packets, 0, octets)
    result.equal("ledger", tuple(ledger[name] for name in ("received", "delivered", "filtered", "wire_bytes")), counts)
    sums = "select sum(received)::bigint, sum(delivered)::bigint, sum(filtered)::bigint, sum(wire_bytes)::bigint from ledger"
    result.equal("table ledger", numbers(database, sums), counts)
    in_flows = numbers(database, "select sum(packetDeltaCount + reversePacketDeltaCount)::bigint from flows")
    result.equal("packets of flows", in_flows, numbers(database, "select count(*) from packets where protocol is not null"))
    result.permit("packets without IP, which are in no flow", packets - in_flows[0])
    print(f"{packets:,} packets, {octets:,} bytes")


def compare_packets(result, database):
    """Compares each column of each packet with tshark."""
    joined = "from (select *, epoch_ns(time) as at from packets) p full join reference r on p.at = r.time"
    alone = numbers(database, f"select count(*) filter (r.time is null), count(*) filter (p.at is null) {joined}")
    result.equal("packets that only strait, only tshark has", alone, (0, 0))
    # One query for all columns, as the join is the longest step.
    names, terms = [], []
    for column in COLUMNS:
        differs = f"p.{column} is distinct from r.{column}"
        permitted = [(name, condition.format(column=column)) for name, columns, condition in PERMITTED if column in columns]
        anywhere = " or ".join(condition for _, condition in permitted) or "false"
        names += [(column, None)] + [(column, name) for name, _ in permitted]
        terms += [f"{differs} and not coalesce({anywhere}, false)"] + [f"{differs} and {condition}" for _, condition in permitted]
    counts = numbers(database, f"select {', '.join(f'count(*) filter ({term})' for term in terms)} {joined}")
    for (column, name), term, count in zip(names, terms, counts, strict=True):
        if name:
            result.permit(f"packets.{column}: {name}", count)
            continue
        result.equal(f"packets.{column}: rows that differ from tshark", count, 0)
        if count:
            shown = f"select r.time, p.{column}, r.{column} {joined} where {term} limit 3"
            result.faults.append(f"  the first: {database.execute(shown).fetchall()}")


def begins(prefixes):
    """Returns a condition on the addresses of a flow."""
    columns = [(column, prefix) for column in ("source", "destination") for prefix in prefixes]
    return "(" + " or ".join(f"starts_with({column}, '{prefix}')" for column, prefix in columns) + ")"


def compare_flows(result, database, other, special, columns):
    """Compares sums and times of flows with those of another program. `special` has conditions that the caller permits."""
    usual = " and ".join(["true", *(f"not {condition}" for condition in special)])
    key = "using (protocol, source, destination, source_port, destination_port, icmp_key)"
    side = "(select *, coalesce(icmp, -1) as icmp_key from {} where " + usual + ")"
    joined = f"from {side.format('strait')} a full join {side.format(other)} b {key}"
    count = numbers(database, f"select count(*) {joined}")[0]
    result.equal(f"flows: some are common to strait and {other}", count > 0, True)
    alone = numbers(database, f"select count(*) filter (b.packets is null), count(*) filter (a.packets is null) {joined}")
    result.equal(f"flows that only strait, only {other} has", alone, (0, 0))
    for column in columns:
        differs = f"a.{column} is distinct from b.{column}"
        faults = numbers(database, f"select count(*) filter ({differs}) {joined}")[0]
        result.equal(f"flows.{column}: directions that differ from {other}, of {count:,}", faults, 0)
        if faults:
            shown = f"select *, a.{column}, b.{column} {joined} where {differs} limit 3"
            result.faults.append(f"  the first: {database.execute(shown).fetchall()}")


def compare_times(result, database, other, special, unit_ns):
    """Compares first and last times of both directions, in units of the other program."""
    usual = " and ".join(["true", *(f"not {condition}" for condition in special)])
    usual = usual.replace("source,", "one[1],").replace("destination,", "other[1],")
    side = "(select *, coalesce(icmp, -1) as icmp_key from {}_times where " + usual + ")"
    joined = f"from {side.format('strait')} a full join {side.format(other)} b using (protocol, icmp_key, one, other)"
    query = f"select count(*) filter (a.first is not null and b.first is not null), count(*) filter (b.first is null), count(*) filter (a.first is null) {joined}"
    count, *alone = numbers(database, query)
    result.equal(f"flows: some times are common to strait and {other}", count > 0, True)
    result.equal(f"flows: times that only strait, only {other} has", tuple(alone), (0, 0))
    for column in "first", "last":
        query = f"select count(*) filter (a.{column} // {unit_ns} != b.{column}), count(*) filter (a.{column} != b.{column} * {unit_ns}) {joined}"
        faults, rounded = numbers(database, query)
        result.equal(f"flows: time of the {column} packet, different from {other} of {count:,}", faults, 0)
        if rounded and unit_ns > 1:
            result.permit(f"flows: {other} has the time of the {column} packet in milliseconds", rounded)
        if faults:
            shown = f"select one, other, a.{column}, b.{column} {joined} where a.{column} // {unit_ns} != b.{column} limit 3"
            result.faults.append(f"  the first: {database.execute(shown).fetchall()}")


def make_flows(database, name, rows):
    database.execute(DIRECTED.format(name=name, rows=rows))
    database.execute(PAIRED.format(name=name, rows=rows))


def read_nfdump(result, database, capture, directory):
    """Reads the capture by nfpcapd, and its flows by nfdump. Returns false without these programs."""
    nfpcapd, nfdump = (common.find(name, f"nfdump/usr/bin/{name}") for name in ("nfpcapd", "nfdump"))
    if not nfpcapd or not nfdump:
        common.skip("nfdump", "not installed: scripts/setup-programs nfdump")
        return False
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    _, log = common.run([nfpcapd, "-r", capture, "-w", directory, "-e", "60,15"], env=common.environment(nfpcapd))
    # It also reports those of each file that it has written.
    skipped = int(re.search(r"Total: .*skipped: (\d+)", log)[1])
    tagged = numbers(database, "select count(*) from packets where inner_vlan is not null")[0]
    result.equal("packets that nfpcapd skips: those of 802.1ad", skipped, tagged)
    result.permit("packets of 802.1ad, which nfpcapd skips", skipped)
    command = [nfdump, "-R", directory, "-q", "-N", "-6", "-o", NFDUMP_FORMAT]
    columns = "{" + ", ".join(f"'{column}': 'varchar'" for column in NFDUMP_COLUMNS) + "}"
    options = f"delim = '\t', header = false, auto_detect = false, quote = '', escape = '', columns = {columns}"
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**common.environment(nfdump), "TZ": "UTC"}) as process:
        path = f"/dev/fd/{process.stdout.fileno()}"
        database.execute(f"create table nfdump_rows as select * from read_csv('{path}', {options})")
    if process.returncode:
        sys.exit("nfdump failed")
    flags = " + ".join(f"(contains(flags, '{letter}')::bigint * {bit})" for letter, bit in FLAGS.items())
    make_flows(database, "nfdump", NFDUMP_FLOWS.format(flags=flags))
    return True


def compare_with_nfdump(result, database):
    """nfpcapd reassembles fragments of IPv4, has no ports of those of IPv6, and does not read 802.1ad."""
    fragments, two_tags = begins(mixed_traffic.FRAGMENTS), begins(mixed_traffic.TWO_TAGS)
    compare_flows(result, database, "nfdump", [fragments, two_tags], ("packets", "octets", "flags"))
    compare_times(result, database, "nfdump", [fragments, two_tags], 10**6)
    unread = (("fragments, which nfpcapd reassembles", fragments), ("802.1ad, which nfpcapd skips", two_tags))
    tagged = ("a VLAN, which nfpcapd does not store", f"vlan is not null and not {two_tags}")
    for name, condition in (*unread, tagged):
        result.permit(f"flows of {name}", numbers(database, f"select count(*) from strait where {condition}")[0])
    datagrams = "select count(distinct (source_address, ip_id)) from reference where fragment_offset is not null and octets is not null"
    v4 = numbers(database, f"{datagrams} and source_address like '%.%'")[0]
    stored = numbers(database, f"select coalesce(sum(packets), 0)::bigint from nfdump where {fragments} and source like '%.%'")[0]
    result.equal("datagrams in fragments of IPv4: those of tshark, packets of nfdump", v4, stored)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=10)
    parser.add_argument("--dir", type=pathlib.Path, default=pathlib.Path("/var/tmp/strait-volume"))
    parser.add_argument("--bin", type=pathlib.Path, default=common.ROOT / "target/release")
    parser.add_argument("--keep", action="store_true", help="keep the capture and the tables")
    options = parser.parse_args()
    for program in "tshark", "capinfos":
        if not shutil.which(program):
            sys.exit(f"{program} is missing: install Debian's tshark")
    common.end_by_exception()
    capture, is_new = mixed_traffic.prepare(options.dir, options.gib * 1024)
    work = options.dir / f"work-{os.getpid()}"
    try:
        work.mkdir()
        result = compare(options.bin / "strait", capture, work)
    finally:
        if not options.keep:
            common.remove(work)
            if is_new:
                capture.unlink()
    sys.exit(result.report())


def compare(strait, capture, work):
    result, database = Comparison(), duckdb.connect(str(work / "reference.duckdb"))
    ledger = read_tables(database, strait, capture, work / "lake")
    read_tshark(database, capture, work / "tshark.log")
    compare_counts(result, database, capture, ledger)
    compare_packets(result, database)
    make_flows(database, "strait", STRAIT_FLOWS)
    make_flows(database, "tshark", TSHARK_FLOWS)
    compare_flows(result, database, "tshark", [], ("packets", "octets", "flags", "vlan"))
    compare_times(result, database, "tshark", [], 1)
    if read_nfdump(result, database, capture, work / "nfdump"):
        compare_with_nfdump(result, database)
    return result


if __name__ == "__main__":
    main()
