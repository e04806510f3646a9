"""damaged.py FILE: prints the rows before the damage, those of the ledger, and the error."""

import sys

import strait

rows, session = 0, strait.read(sys.argv[1])
try:
    for batch in session:
        rows += len(batch)
except strait.Error as error:
    print(rows, session.ledger["delivered"], f"{type(error).__name__}: {error}", sep="\n")
