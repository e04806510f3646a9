"""blocked.py INTERFACE: waits for a packet that never comes."""

import sys

import strait

with strait.capture(sys.argv[1]) as session:
    print("ready", flush=True)
    next(session)
