"""Prints that an interrupt has ended the wait for standard input."""

import strait

try:
    print("ready", flush=True)
    strait.read("-")
except KeyboardInterrupt:
    print("interrupted")
