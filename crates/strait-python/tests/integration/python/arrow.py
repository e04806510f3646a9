"""arrow.py FILE BYTES: checks batches in pyarrow: the memory is shared, and stays after the session."""

import gc
import sys

import pyarrow
import pyarrow.compute
import strait

file, total = sys.argv[1], int(sys.argv[2])
kept = []
with strait.read(file, frames=32, batch_rows=1000) as session:
    assert pyarrow.schema(session).names == session.column_names
    for batch in session:
        first, second = pyarrow.record_batch(batch), pyarrow.record_batch(batch)
        first.validate(full=True)
        for name in ("time", "length", "frame"):
            buffers = [[buffer and buffer.address for buffer in table[name].buffers()] for table in (first, second)]
            assert buffers[0] == buffers[1], name
        kept.append(first)
        # A capsule that nothing takes over is freed.
        batch.__arrow_c_array__(None), batch.__arrow_c_stream__()
del session, batch, first, second
gc.collect()
table = pyarrow.Table.from_batches(kept)
assert [len(batch) for batch in kept] == [1000, 1000, 1000]
assert pyarrow.compute.sum(table["length"]).as_py() == total
assert all(len(frame.as_py()) == 32 for frame in table["frame"])
try:
    pyarrow.table(strait.read(file[:-1]))
    raise SystemExit("no error")
except strait.Error:
    pass
print("done")
