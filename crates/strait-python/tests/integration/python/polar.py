"""polar.py FILE BYTES: checks batches and a session in Polars."""

import sys

import polars
import strait

file, total = sys.argv[1], int(sys.argv[2])
for batch in strait.read(file):
    frame = polars.DataFrame(batch)
    assert (frame.height, frame["length"].sum()) == (3000, total)
frame = polars.DataFrame(strait.read(file, columns="basic", batch_rows=700))
assert frame.height == 3000 and frame["protocol"].n_unique() == 2
print("done")
