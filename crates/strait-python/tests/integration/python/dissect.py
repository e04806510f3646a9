"""dissect.py FILE: prints the layers that scapy finds in frames, three frames a line."""

import sys

import strait
from scapy.layers.all import IP, TCP, UDP, Ether, IPv6

names = []
for frame in strait.read(sys.argv[1]).frames():
    packet = Ether(bytes(frame))
    packet.time = frame.time
    assert len(packet) == frame.length
    names.append("/".join(layer.__name__ for layer in (Ether, IP, IPv6, UDP, TCP) if layer in packet))
for at in range(0, len(names), 3):
    print(*names[at : at + 3])
