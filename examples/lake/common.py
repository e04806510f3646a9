"""Command line, queries and output of the programs of this directory."""

import csv
import pathlib
import re
import sys

# Tables of the queries, and their columns with times.
TABLES = {
    "flows": ("flowStartNanoseconds", "flowEndNanoseconds"),
    "dns": ("time",),
    "ledger": ("time", "interval_start"),
}


def arguments():
    """Returns the directory or URL of the tables, and the names of the requested queries: none for all."""
    if len(sys.argv) < 2:
        sys.exit(f"usage: {sys.argv[0]} DIRECTORY [QUERY...]")
    place, *names = sys.argv[1:]
    return place if "://" in place else pathlib.Path(place).resolve(), names


def queries(names):
    """Yields name and SQL of the requested queries in queries.sql."""
    text = pathlib.Path(__file__).with_name("queries.sql").read_text()
    _, _, text = text.partition("\n\n")
    statements = {}
    for statement in text.split(";\n"):
        if statement.strip():
            name = statement.strip().removeprefix("-- ").partition(":")[0]
            statements[name] = statement
    return selected(statements, names)


def tables(names):
    """Returns the tables that the requested queries name, with their columns with times."""
    texts = [sql for _, sql in queries(names)]
    return {table: TABLES[table] for table in TABLES if any(re.search(rf"\b(from|join) {table}\b", sql) for sql in texts)}


def selected(queries, names):
    """Returns pairs of the dictionary `queries`: those with these names, or all."""
    for name in names:
        if name not in queries:
            sys.exit(f"{name}: no such query; give some of {', '.join(queries)}")
    return [(name, queries[name]) for name in names or queries]


def show(name, columns, rows):
    """Prints the rows of a query as CSV, with its name and a line of the columns before them."""
    print(f"# {name}")
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(columns)
    for row in rows:
        out.writerow([f"{value:.10g}" if isinstance(value, float) else value for value in row])
    print(flush=True)
