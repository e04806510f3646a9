"""Prints the error of a capture without privileges."""

import strait

try:
    strait.capture("lo", path="v3")
except strait.RefusedError as error:
    print(f"{type(error).__name__}: {error}")
