"""file.py FILE COUNT: prints the bytes of the first frames, then the counts of frames and of the ledger."""

import pathlib
import sys

import strait

file, count = sys.argv[1:]
session = strait.read(pathlib.Path(file), count=int(count))
frames = list(session.frames())
print(b"".join(frame.data for frame in frames).hex())
print(len(frames), session.ledger["delivered"])
