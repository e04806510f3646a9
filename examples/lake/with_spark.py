"""Runs queries.sql with Spark: python with_spark.py DIRECTORY [QUERY...]"""

from pyspark.sql import SparkSession

import common

lake, names = common.arguments()
builder = SparkSession.builder.appName("strait lake")
# Names of sensors stay text, also those of digits alone.
builder = builder.config("spark.sql.sources.partitionColumnTypeInference.enabled", "false")
# Spark has no times in nanoseconds, and reads them as numbers.
spark = builder.config("spark.sql.legacy.parquet.nanosAsLong", "true").getOrCreate()
for table in common.tables(names):
    spark.read.parquet(f"{lake}/{table}").createOrReplaceTempView(table)
for name, sql in common.queries(names):
    result = spark.sql(sql)
    common.show(name, result.columns, result.collect())
spark.stop()
