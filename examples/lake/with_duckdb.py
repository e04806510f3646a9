"""Runs queries.sql with DuckDB: python with_duckdb.py DIRECTORY [QUERY...]"""

import duckdb

import common

VIEW = """
create view {table} as
select * replace ({times}) from read_parquet('{lake}/{table}/**/*.parquet', hive_partitioning = true, hive_types_autocast = false)
"""

lake, names = common.arguments()
connection = duckdb.connect()
for table, columns in common.tables(names).items():
    times = ", ".join(f"epoch_ns({column}) as {column}" for column in columns)
    connection.execute(VIEW.format(table=table, times=times, lake=lake))
for name, sql in common.queries(names):
    result = connection.execute(sql)
    common.show(name, [column[0] for column in result.description], result.fetchall())
