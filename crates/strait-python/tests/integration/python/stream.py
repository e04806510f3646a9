"""stream.py INTERFACE: pyarrow waits for a packet that never comes."""

import sys

import pyarrow
import strait

session = strait.capture(sys.argv[1])
print("ready", flush=True)
pyarrow.table(session)
print("a table")
