"""Runs the queries with Polars, as expressions of dataframes: python with_polars.py DIRECTORY [QUERY...]"""

import polars as pl

import common

lake, names = common.arguments()
flows, dns, ledger = (pl.scan_parquet(f"{lake}/{table}/**/*.parquet", hive_partitioning=True) for table in common.TABLES)

PAIR = {"source": "sourceAddress", "destination": "destinationAddress"}
pair = [pl.col(column).alias(name) for name, column in PAIR.items()]
port = pl.col("destinationTransportPort").alias("port")
protocol = pl.col("protocolIdentifier").alias("protocol")
packets = (pl.col("packetDeltaCount") + pl.col("reversePacketDeltaCount")).sum().alias("packets")
octets = (pl.col("octetDeltaCount") + pl.col("reverseOctetDeltaCount")).sum().alias("bytes")
sensors = pl.col("sensor").n_unique().alias("sensors")
start_ns = pl.col("flowStartNanoseconds").cast(pl.Int64)
# The first row of a flow has SYN.
has_syn = pl.col("tcpControlBits") & 2 != 0


def milliseconds(nanoseconds):
    return (nanoseconds / 1e6).round(3)


def top_talkers():
    return (
        flows.group_by(pair)
        .agg(pl.len().alias("flows"), packets, octets)
        .sort("bytes", "source", "destination", descending=[True, False, False])
        .head(20)
    )


def new_destinations():
    return (
        flows.group_by(pl.col("destinationAddress").alias("destination"))
        .agg(start_ns.min().alias("first_seen"), start_ns.max().alias("last_seen"), pl.len().alias("flows"), sensors)
        .filter(pl.col("first_seen") > pl.col("last_seen").max() - 3600 * 10**9)
        .drop("last_seen")
        .sort("first_seen", "destination")
    )


def slow_handshakes():
    handshake = pl.col("handshakeNanoseconds")
    return (
        flows.filter(handshake.is_not_null() & has_syn)
        .group_by(pair[1], port)
        .agg(
            pl.len().alias("handshakes"),
            milliseconds(handshake.mean()).alias("mean_ms"),
            milliseconds(handshake.max()).alias("slowest_ms"),
        )
        .sort("slowest_ms", "destination", "port", descending=[True, False, False])
        .head(20)
    )


def retransmissions():
    return (
        flows.filter(pl.col("protocolIdentifier") == 6)
        .group_by(pair)
        .agg(
            packets,
            pl.col("retransmitted").sum().alias("sent_again"),
            pl.col("reverseRetransmitted").sum().alias("received_again"),
        )
        .with_columns(again=pl.col("sent_again") + pl.col("received_again"))
        .filter(pl.col("again") > 0)
        .with_columns(percent=(100 * pl.col("again") / pl.col("packets")).round(2))
        .drop("again")
        .sort("percent", "source", "destination", descending=[True, False, False])
        .head(20)
    )


def port_scans():
    return (
        flows.filter(pl.col("destinationTransportPort").is_not_null())
        .group_by(*pair, protocol)
        .agg(pl.col("destinationTransportPort").n_unique().alias("ports"), sensors)
        .filter(pl.col("ports") >= 20)
        .sort("ports", "source", "destination", "protocol", descending=[True, False, False, False])
        .head(20)
    )


def host_scans():
    return (
        flows.group_by(pair[0], protocol, port)
        .agg(
            pl.col("destinationAddress").n_unique().alias("destinations"),
            sensors,
            (pl.col("reversePacketDeltaCount") == 0).sum().alias("unanswered"),
            pl.len().alias("flows"),
        )
        .filter(pl.col("destinations") >= 20, 2 * pl.col("unanswered") > pl.col("flows"))
        .sort(
            "destinations", "source", "protocol", "port", descending=[True, False, False, False], nulls_last=True
        )
        .head(20)
    )


def beacons():
    gap = start_ns.sort().diff()
    return (
        flows.filter(has_syn)
        .group_by(*pair, port)
        .agg(pl.len().alias("connections"), gap.mean().alias("mean"), gap.std(ddof=0).alias("deviation"))
        .filter(pl.col("connections") >= 10, pl.col("mean") > 0, pl.col("deviation") < 0.1 * pl.col("mean"))
        .select(
            "source",
            "destination",
            "port",
            "connections",
            interval_seconds=(pl.col("mean") / 1e9).round(3),
            deviation_percent=(100 * pl.col("deviation") / pl.col("mean")).round(2),
        )
        .sort("deviation_percent", "source", "destination", "port")
        .head(20)
    )


def dns_failures():
    return (
        dns.filter(pl.col("message") == "response", pl.col("response_code") != 0)
        .group_by("query", "query_type", "response_code")
        .agg(pl.len().alias("responses"), pl.col("destination_address").n_unique().alias("clients"), sensors)
        .sort(
            "responses",
            "query",
            "query_type",
            "response_code",
            descending=[True, False, False, False],
            nulls_last=True,
        )
        .head(20)
    )


def losses():
    lost = [f"lost_{place}" for place in ("nic_missed", "ring_full", "fill_empty", "sink", "unread", "other")]
    return (
        ledger.group_by("sensor")
        .agg(
            pl.col("received", "delivered", "filtered").sum(),
            pl.sum_horizontal(lost).sum().alias("lost"),
        )
        .sort("sensor")
    )


QUERIES = [
    top_talkers,
    new_destinations,
    slow_handshakes,
    retransmissions,
    port_scans,
    host_scans,
    beacons,
    dns_failures,
    losses,
]
by_name = {query.__name__.replace("_", "-"): query for query in QUERIES}
for name, query in common.selected(by_name, names):
    frame = query().collect()
    common.show(name, frame.columns, frame.rows())
