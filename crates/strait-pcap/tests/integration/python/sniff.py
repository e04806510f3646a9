"""Sniffs with Scapy through libpcap: a number of packets, then none until a timeout. Prints the packets.

    sniff.py INTERFACE
"""
import sys
import time

from scapy.config import conf

conf.use_pcap = True

from scapy.all import sniff


def ready():
    print("ready", flush=True)


interface = sys.argv[1]
packets = sniff(iface=interface, filter="udp and port 20000", count=50, timeout=30, started_callback=ready)
for packet in packets:
    print(bytes(packet).hex())

begin = time.monotonic()
packets = sniff(iface=interface, filter="tcp port 9", timeout=1)
waited = time.monotonic() - begin
print(f"nothing: {len(packets)}, in time: {0.9 < waited < 10}", flush=True)
