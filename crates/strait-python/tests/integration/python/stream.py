"""stream.py INTERFACE: pyarrow waits for a packet that never comes; prints that the program gets the interrupt."""

import sys

import pyarrow
import strait

session = strait.capture(sys.argv[1])
# Imports what it needs: the import system ignores an interrupt.
pyarrow.table(pyarrow.table({"a": [1]}).to_reader())
try:
    print("ready", flush=True)
    try:
        pyarrow.table(session)
        print("a table")
    except pyarrow.ArrowInvalid:
        print("a failure")
except KeyboardInterrupt:
    print("interrupted")
