"""Reads with pcapy: next(), loop(), dispatch(), a change of the filter, and statistics. Prints the packets.

    read.py INTERFACE
"""
import sys

import pcapy

reader = pcapy.create(sys.argv[1])
reader.set_snaplen(96)
reader.set_promisc(1)
reader.set_timeout(200)
reader.set_buffer_size(1 << 20)
reader.activate()
reader.setfilter("udp and port 20000")
print(reader.datalink() == pcapy.DLT_EN10MB, reader.getnonblock(), reader.getfd() >= 0)
print("ready", flush=True)

came = []


def take(header, data):
    came.append((header.getlen(), header.getcaplen(), data.hex()))


header, data = reader.next()
take(header, data)
reader.loop(20, take)
while len(came) < 40:
    reader.dispatch(40 - len(came), take)
for length, captured, data in came:
    print(length, captured, data)
received, dropped, _ = reader.stats()
print("counts:", received >= 40, dropped)

reader.setfilter("tcp port 9")
came.clear()
print("nothing:", reader.dispatch(-1, take), came)
reader.close()
