"""removed.py INTERFACE: prints the rows before the failure of a capture, and its text."""

import sys

import strait

session = strait.capture(sys.argv[1], path="v3", batch_time=3600)
print("ready", flush=True)
try:
    for batch in session:
        print(len(batch), "rows")
except strait.Error as error:
    print(f"{type(error).__name__}: {error}")
assert next(session, None) is None
