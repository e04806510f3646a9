"""mixed.py FILE TOTAL: takes frames and then batches, which have the bytes of all later packets."""

import sys

import pyarrow
import pyarrow.compute
import strait


def values(table):
    """Returns the columns by value: each batch has dictionaries of its own."""
    return table.set_column(0, "time", table["time"].cast(pyarrow.int64())).to_pydict()


file, total = sys.argv[1], int(sys.argv[2])
options = {"columns": "all", "frames": 2048, "batch_rows": 100}
whole = pyarrow.table(strait.read(file, **options))
assert pyarrow.compute.sum(whole["length"]).as_py() == total
with strait.read(file, **options) as session:
    frames = session.frames()
    taken = [bytes(next(frames)) for _ in range(3)]
    first = pyarrow.record_batch(next(session))
    taken += [bytes(next(frames)) for _ in range(2)]
    batches = [pyarrow.record_batch(batch) for batch in session]
assert taken == whole["frame"].take([0, 1, 2, 103, 104]).to_pylist()
assert whole.column_names[0] == "time"
assert values(pyarrow.Table.from_batches([first])) == values(whole.slice(3, 100))
assert values(pyarrow.Table.from_batches(batches)) == values(whole.slice(105))
ledger = session.ledger
assert (ledger["delivered"], ledger["lost"]["unread"]) == (len(whole), 0), ledger
print("done")
