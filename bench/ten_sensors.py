"""Ten sensors, one bucket and one topic: their sums equal the ledgers of the sensors. Exits with 1 if they do not.

    python bench/ten_sensors.py [--sensors N] [--rate PPS] [--seconds N] [--bin DIR] [--dir DIR] [-- OPTION...]

Each sensor is a `strait capture` on a veth pair in a network namespace of its own, on which `strait generate` sends PPS packets a
second (default: 100,000) for N seconds (default: 30). All of them upload tables to one bucket of moto's S3 server, and publish flows
on one topic of Kafka. A machine with few CPUs loses packets: the ledger of each sensor counts them.
Each capture gets the options after `--`; a small ring, as in `-- --ring-mib 256KiB`, loses packets everywhere.

Needs root, java, and scripts/setup-programs tables moto kafka. It runs in a network, mount and process namespace of its own, which
the kernel removes with all processes when it ends, also after a kill. DIR (default: /var/tmp) needs about 10 bytes for each packet
for the bucket in moto's memory and its copy, and 1 KB for each flow in the topic.
"""

import argparse
import collections
import ctypes
import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import xml.etree.ElementTree

import common

BUCKET, TOPIC = "lake", "flows"
# Value of the field Authorization. moto does not check the signature.
SIGNED = "AWS4-HMAC-SHA256 Credential=key/20261125/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
LIMIT_S = 120
# Time limit for the end of a capture: uploads and exports are completed.
END_LIMIT_S = 1800
INSIDE = "STRAIT_TEN_SENSORS"


def outside(options):
    """Runs this script again in namespaces of its own, and removes its directory. They end with this process."""
    if os.geteuid():
        sys.exit("ten_sensors.py needs root for its namespaces")
    work = tempfile.mkdtemp(prefix="strait-ten-sensors-", dir=options.dir)
    command = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, *sys.argv]
    common.end_by_exception()
    process = subprocess.Popen(command, env={**os.environ, INSIDE: work}, preexec_fn=end_with_parent)
    try:
        return process.wait()
    finally:
        process.kill()
        process.wait()
        common.remove(work)


def end_with_parent():
    """Lets the kernel kill this process when its parent ends: PR_SET_PDEATHSIG of prctl(2)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def wait_until(condition, what, limit_s=LIMIT_S):
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            sys.exit(f"{what}: not within {limit_s} s")
        time.sleep(0.05)


def is_listening(port):
    try:
        socket.create_connection(("127.0.0.1", port)).close()
        return True
    except OSError:
        return False


def start(command, log, **options):
    """Starts a program with its output in a file."""
    with open(log, "wb") as out:
        return subprocess.Popen(list(map(str, command)), stdout=out, stderr=subprocess.STDOUT, **options)


class Moto:
    """Object store with one bucket."""

    def __init__(self, work, port=5000):
        self.port = port
        self.process = start([common.PROGRAMS / "moto/bin/moto_server", "-H", "127.0.0.1", "-p", port], work / "moto.log")
        wait_until(lambda: is_listening(port), "moto answers")
        self.request("PUT", f"/{BUCKET}")

    def request(self, method, target):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        connection.request(method, target, headers={"Authorization": SIGNED, "Content-Length": "0"})
        response = connection.getresponse()
        body = response.read()
        connection.close()
        if response.status != 200:
            sys.exit(f"moto: {method} {target}: {response.status} {body[:200]}")
        return body

    def keys(self):
        """Yields the keys of all objects, a page after the other."""
        token = ""
        while True:
            root = xml.etree.ElementTree.fromstring(self.request("GET", f"/{BUCKET}?list-type=2{token}"))
            text = lambda name: [element.text for element in root.iter() if element.tag.endswith("}" + name)]
            yield from text("Key")
            if text("IsTruncated") != ["true"]:
                return
            token = "&continuation-token=" + urllib.parse.quote(text("NextContinuationToken")[0])

    def download(self, directory):
        """Stores all objects as files. Returns their number."""
        count = 0
        for key in self.keys():
            path = directory / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self.request("GET", f"/{BUCKET}/{urllib.parse.quote(key)}"))
            count += 1
        return count


class Kafka:
    """Broker and controller in one process, with one topic."""

    def __init__(self, work, port=9092, controller=9093):
        self.program, self.port = common.PROGRAMS / "kafka/bin/kafka", port
        properties = work / "server.properties"
        properties.write_text(
            "process.roles=broker,controller\nnode.id=1\n"
            f"controller.quorum.voters=1@127.0.0.1:{controller}\ncontroller.listener.names=CONTROLLER\n"
            f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}\n"
            f"advertised.listeners=PLAINTEXT://127.0.0.1:{port}\nlog.dirs={work}/kafka\n"
            "auto.create.topics.enable=false\noffsets.topic.replication.factor=1\noffsets.topic.num.partitions=1\n"
            "group.initial.rebalance.delay.ms=0\n"
        )
        self.tool("kafka.tools.StorageTool", "format", "-t", "AAAAAAAAAAAAAAAAAAAAAA", "-c", properties)
        self.process = start([self.program, "kafka.Kafka", properties], work / "kafka.log")
        wait_until(lambda: is_listening(port), "Kafka answers")
        create = ("--create", "--topic", TOPIC, "--partitions", "4")
        self.tool("org.apache.kafka.tools.TopicCommand", "--bootstrap-server", f"127.0.0.1:{port}", *create)

    def tool(self, *words):
        return subprocess.run(list(map(str, [self.program, *words])), capture_output=True, text=True, check=True).stdout

    def records(self):
        """Yields identifier and flow of each record."""
        server = ("--bootstrap-server", f"127.0.0.1:{self.port}", "--topic", TOPIC)
        ends = self.tool("org.apache.kafka.tools.GetOffsetShell", *server)
        count = sum(int(line.rsplit(":", 1)[1]) for line in ends.split())
        if not count:
            return
        options = ("--from-beginning", "--max-messages", str(count), "--property", "print.headers=true")
        command = [self.program, "org.apache.kafka.tools.consumer.ConsoleConsumer", *server, *options]
        consumer = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for line in consumer.stdout:
            identifier, found, text = line.partition("\t")
            if found and identifier.startswith("id:"):
                yield identifier, json.loads(text)
        if consumer.wait():
            sys.exit("Kafka's consumer failed")


class Sensor:
    """A namespace with a veth pair, a capture on its right end, and a generator on its left end."""

    def __init__(self, number, strait, work, options):
        self.name, self.strait, self.work = f"s{number:02}", strait, work / f"s{number:02}"
        self.work.mkdir()
        self.holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        self.path = f"/proc/{self.holder.pid}/ns/net"
        own = os.readlink("/proc/self/ns/net")
        wait_until(lambda: os.readlink(self.path) != own, "the namespace is made")
        for line in (
            "link add left address 02:00:00:00:00:01 type veth peer name right address 02:00:00:00:00:02",
            "link set left up",
            "link set right up",
        ):
            self.inside("ip", *line.split())
        self.options = options

    def inside(self, *command):
        command = ["nsenter", f"--net={self.path}", "--", *command]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def capture(self, moto, kafka):
        """Starts the capture, and waits until it has dropped its capabilities: then it is open."""
        variables = {**os.environ, **CREDENTIALS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{moto.port}"}
        command = [self.strait, "capture", "-i", "right", "--netns", self.path, "--json", "--sensor", self.name]
        command += ["--to", f"s3://{BUCKET}", "--spool", self.work / "spool", "--columns", "basic", "--rotate-s", "10"]
        command += ["--to", f"kafka://127.0.0.1:{kafka.port}/{TOPIC}", "--flow-idle", "2", *self.options.capture, "udp"]
        with open(self.work / "ledger.json", "wb") as out, open(self.work / "log", "wb") as log:
            self.process = subprocess.Popen(list(map(str, command)), stdout=out, stderr=log, env=variables)
        own = capabilities("self")
        wait_until(lambda: self.process.poll() is not None or capabilities(self.process.pid) != own, f"{self.name} is open")
        if self.process.poll() is not None:
            sys.exit(f"{self.name}: {(self.work / 'log').read_text()}")

    def generate(self):
        command = [self.strait, "generate", "-o", "left", "--netns", self.path, "--rate", self.options.rate, "--flows", "100"]
        self.generator = subprocess.Popen(
            list(map(str, [*command, "--duration", self.options.seconds, "--json"])), stdout=subprocess.PIPE, text=True
        )

    def await_generator(self):
        """Returns the account of the generator when it has ended."""
        text = self.generator.communicate()[0]
        if self.generator.returncode:
            sys.exit(f"{self.name}: the generator failed: {text}")
        return json.loads(text)

    def tx_dropped(self):
        """Returns the packets that the veth pair has dropped before the capture."""
        links = json.loads(self.inside("ip", "-json", "-stats", "link", "show", "left"))
        return links[0]["stats64"]["tx"]["dropped"]

    def ledger(self):
        """Returns the ledger when the capture, which was interrupted, has ended."""
        self.process.wait(END_LIMIT_S)
        text = (self.work / "ledger.json").read_text()
        if not text.strip():
            sys.exit(f"{self.name}: no ledger, exit code {self.process.returncode}: {(self.work / 'log').read_text()}")
        return json.loads(text)


def capabilities(process):
    try:
        lines = open(f"/proc/{process}/status").read().splitlines()
    except OSError:
        return None
    return next((line for line in lines if line.startswith("CapEff")), None)


def lost(counts):
    return sum(counts["lost"].values())


class Check:
    """Equal sums, and those that are not."""

    def __init__(self):
        self.faults, self.count = [], 0

    def equal(self, text, found, expected):
        self.count += 1
        if found != expected:
            self.faults.append(f"DIFFERENT {text}: {found}, expected {expected}")


def check_ledger(check, sensor, ledger, account):
    """Every sent packet is in the ledger, and the ledger balances, as a whole and for each target."""
    for counts in (ledger, *ledger["targets"]):
        name = f"{sensor.name} {counts.get('target', 'ledger')}"
        check.equal(f"{name}: received", counts["received"], counts["delivered"] + counts["filtered"] + lost(counts))
    reached = ledger["received"] - ledger["filtered"]
    check.equal(f"{sensor.name}: packets that reached the capture", reached, account["frames"] - sensor.tx_dropped())


def check_bucket(check, lake, ledgers):
    """The tables have the packets that each ledger has as delivered to the bucket."""
    import duckdb

    table = lambda name: f"read_parquet('{lake}/{name}/**/*.parquet', hive_partitioning = true)"
    rows = lambda query: {sensor: values for sensor, *values in duckdb.sql(query).fetchall()}
    packets = rows(f"select sensor, count(*), sum(length)::bigint from {table('packets')} group by 1")
    flows = rows(f"select sensor, sum(packetDeltaCount + reversePacketDeltaCount)::bigint from {table('flows')} group by 1")
    losses = "lost_nic_missed + lost_ring_full + lost_fill_empty + lost_sink + lost_unread + lost_other"
    sums = f"sum(received)::bigint, sum(delivered)::bigint, sum(filtered)::bigint, sum({losses})::bigint"
    stored = rows(f"select sensor, {sums} from {table('ledger')} group by 1")
    for name, ledger in ledgers.items():
        counts = next(counts for counts in ledger["targets"] if counts["target"].startswith("s3:"))
        check.equal(f"{name}: rows of packets", packets.get(name, [0, 0])[0], counts["delivered"])
        if not lost(counts):
            check.equal(f"{name}: bytes of packets", packets.get(name, [0, 0])[1], counts["wire_bytes"])
        check.equal(f"{name}: packets of flows in the bucket", flows.get(name, [0])[0], counts["delivered"])
        expected = [counts["received"], counts["delivered"], counts["filtered"], lost(counts)]
        check.equal(f"{name}: table ledger", stored.get(name), expected)
    return sum(count for count, _ in packets.values())


def check_topic(check, kafka, ledgers):
    """The topic has the packets that each ledger has as delivered to it, each flow once."""
    identifiers, packets = collections.Counter(), collections.Counter()
    for identifier, flow in kafka.records():
        identifiers[identifier] += 1
        packets[flow["sensor"]] += flow["packetDeltaCount"] + flow["reversePacketDeltaCount"]
    check.equal("records that are in the topic again", sum(identifiers.values()) - len(identifiers), 0)
    for name, ledger in ledgers.items():
        counts = next(counts for counts in ledger["targets"] if counts["target"].startswith("kafka:"))
        check.equal(f"{name}: packets of flows in the topic", packets[name], counts["delivered"])
    return len(identifiers), sum(packets.values())


def is_backlog_empty():
    """Returns true if no CPU has received packets that it has not passed to the captures: softnet_stat of proc(5)."""
    lines = pathlib.Path("/proc/net/softnet_stat").read_text().splitlines()
    return all(int(line.split()[11], 16) == 0 for line in lines)


def measure(options, work):
    """Runs the sensors, and compares. Returns the exit code."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    strait = options.bin / "strait"
    moto, kafka = Moto(work), Kafka(work)
    sensors = [Sensor(number, strait, work, options) for number in range(1, options.sensors + 1)]
    for sensor in sensors:
        sensor.capture(moto, kafka)
    for sensor in sensors:
        sensor.generate()
    accounts = [sensor.await_generator() for sensor in sensors]
    wait_until(is_backlog_empty, "all packets have reached the captures")
    for sensor in sensors:
        sensor.process.send_signal(signal.SIGINT)
    ledgers = {sensor.name: sensor.ledger() for sensor in sensors}
    check = Check()
    for sensor, account in zip(sensors, accounts, strict=True):
        check_ledger(check, sensor, ledgers[sensor.name], account)
    objects = moto.download(work / "bucket")
    rows = check_bucket(check, work / "bucket", ledgers)
    records, packets = check_topic(check, kafka, ledgers)
    report(sensors, accounts, ledgers)
    print(f"bucket: {objects:,} objects, {rows:,} packets; topic: {records:,} flows, {packets:,} packets")
    print(f"compared {check.count} sums", *check.faults, sep="\n")
    return 1 if check.faults else 0


def report(sensors, accounts, ledgers):
    print(f"{'sensor':<8}{'sent':>14}{'veth drops':>12}{'received':>14}{'lost':>12}{'bucket':>14}{'topic':>14}  losses, exit code")
    for sensor, account in zip(sensors, accounts, strict=True):
        ledger = ledgers[sensor.name]
        bucket, topic = (target["delivered"] for target in ledger["targets"])
        losses = {place: count for place, count in ledger["lost"].items() if count}
        numbers = (account["frames"], sensor.tx_dropped(), ledger["received"] - ledger["filtered"], lost(ledger), bucket, topic)
        print(f"{sensor.name:<8}" + "".join(f"{value:>{width},}" for value, width in zip(numbers, (14, 12, 14, 12, 14, 14))), end="  ")
        print(losses or "none", sensor.process.returncode)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sensors", type=int, default=10)
    parser.add_argument("--rate", type=int, default=100_000)
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--bin", type=pathlib.Path, default=common.ROOT / "target/release")
    parser.add_argument("--dir", type=pathlib.Path, default=pathlib.Path("/var/tmp"))
    parser.add_argument("capture", nargs="*", metavar="OPTION", help="options of each capture, after --")
    options = parser.parse_args()
    common.use_tables_python()
    if not (options.bin / "strait-upload").exists():
        sys.exit(f"{options.bin}/strait-upload is missing: cargo build --release --package strait-upload --package strait-cli")
    for name, program in (("moto", "moto/bin/moto_server"), ("kafka", "kafka/bin/kafka")):
        if not (common.PROGRAMS / program).exists():
            sys.exit(f"{name} is missing: run scripts/setup-programs {name}")
    # The parent of the namespaces removes the directory, so that it goes also after a kill of the processes within.
    if not os.environ.get(INSIDE):
        return outside(options)
    sys.exit(measure(options, pathlib.Path(os.environ[INSIDE])))


if __name__ == "__main__":
    sys.exit(main())
