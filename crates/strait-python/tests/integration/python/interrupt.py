"""interrupt.py INTERFACE batches|frames: goes on after an interrupt, and prints the packets that came later."""

import sys

import strait

interface, form = sys.argv[1:]
session = strait.capture(interface, count=60)
packets = session if form == "batches" else session.frames()
try:
    print("ready", flush=True)
    next(packets)
    raise SystemExit("no interrupt")
except KeyboardInterrupt:
    print("interrupted", flush=True)
count = sum(len(batch) for batch in packets) if form == "batches" else sum(1 for _ in packets)
print(count, session.ledger["delivered"])
