"""Prints that an interrupt has ended the wait for standard input."""

import strait

print("ready", flush=True)
try:
    strait.read("-")
except KeyboardInterrupt:
    print("interrupted")
