"""Runs queries.sql with ClickHouse in this process: python with_clickhouse.py DIRECTORY [QUERY...]"""

import json

from chdb import session

import common

VIEW = """
create view {table} as
select * replace ({times}) from file('{lake}/{table}/**/*.parquet', Parquet)
"""

lake, names = common.arguments()
clickhouse = session.Session()
clickhouse.query("create database lake")
clickhouse.query("use lake")
for table, columns in common.tables(names).items():
    # Nullable, as lag() returns 0 instead of null for the first row of another column.
    times = ", ".join(f"toNullable(toUnixTimestamp64Nano({column})) as {column}" for column in columns)
    clickhouse.query(VIEW.format(table=table, times=times, lake=lake))
for name, sql in common.queries(names):
    header, *rows = map(json.loads, str(clickhouse.query(sql, "JSONCompactEachRowWithNames")).splitlines())
    common.show(name, header, rows)
