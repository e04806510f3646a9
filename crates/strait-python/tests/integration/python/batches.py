"""batches.py INTERFACE PATH FILTER: counts the rows of batches until 1 of 3 of 300 frames has come."""

import json
import sys

import strait

interface, path, text = sys.argv[1:]
rows, names = 0, None
with strait.capture(interface, filter=text, path=path, batch_time=0.05, batch_rows=64, columns=["basic", "ttl"]) as session:
    print("ready", flush=True)
    for batch in session:
        assert 0 < len(batch) <= 64 and batch.num_columns == 9
        rows += batch.num_rows
        names = batch.column_names
        if rows >= 100:
            break
print(json.dumps({"rows": rows, "names": names, "ledger": session.ledger}))
