"""duck.py FILE BYTES: checks batches and a session in DuckDB."""

import sys

import duckdb
import strait

file, total = sys.argv[1], int(sys.argv[2])
for batch in strait.read(file):
    assert duckdb.sql("select count(*), sum(length) from batch").fetchall() == [(3000, total)]
session = strait.read(file, filter="ip", columns="basic")
assert duckdb.sql("select count(*), count(distinct source_port) > 1 from session").fetchall() == [(2000, True)]
assert session.ledger["filtered"] == 1000
print("done")
