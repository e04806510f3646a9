"""rows.py FILE FILTER COLUMNS: prints the rows of a file in the form of tshark's fields."""

import sys

import pyarrow
import strait


def text(value):
    if value is None:
        return ""
    return str(value)


file, expression, columns = sys.argv[1:]
table = pyarrow.table(strait.read(file, filter=expression, columns=columns, batch_rows=17))
table = table.set_column(table.schema.get_field_index("time"), "time", table["time"].cast(pyarrow.int64()))
for row in table.to_pylist():
    row["time"] = f"{row['time'] // 10**9}.{row['time'] % 10**9:09}"
    print("\t".join(text(row[name]) for name in columns.split(",")))
