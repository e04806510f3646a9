"""Reads tables with pyarrow and DuckDB, for tests/integration/tables.rs.

tables.py rows DIRECTORY COLUMN...   prints rows by time, tab-separated, as pyarrow reads them
tables.py sql DIRECTORY QUERY        prints the result of DuckDB; its tables are those of the directory
"""

import glob
import sys

import duckdb
import pyarrow.compute
import pyarrow.dataset


def rows(directory, columns):
    table = pyarrow.dataset.dataset(directory + "/packets", partitioning="hive").to_table()
    table = table.set_column(
        table.schema.get_field_index("time"), "time", table["time"].cast(pyarrow.int64())
    )
    return table.select(columns).to_pylist()


def sql(directory, query):
    connection = duckdb.connect()
    for name in ("packets", "flows", "dns", "tls", "http", "ledger"):
        pattern = f"{directory}/{name}/**/*.parquet"
        if glob.glob(pattern, recursive=True):
            connection.execute(f"create view {name} as select * from read_parquet('{pattern}', hive_partitioning = true)")
    return connection.execute(query).fetchall()


def text(value):
    return "" if value is None else str(value)


command, directory, *rest = sys.argv[1:]
if command == "rows":
    for row in rows(directory, rest):
        print("\t".join(text(row[column]) for column in rest))
else:
    for row in sql(directory, rest[0]):
        print("\t".join(map(text, row)))
