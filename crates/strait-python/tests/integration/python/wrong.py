"""Prints the errors of wrong arguments."""

import strait

CALLS = [
    ("lo", {"frames": 0}),
    ("lo", {"batch_rows": 65537}),
    ("lo", {"count": -1}),
    ("lo", {"snaplen": 262145}),
    ("lo", {"batch_time": 0}),
    ("lo", {"duration": float("nan")}),
    ("lo", {"columns": ["basic", "ports"]}),
    ("lo", {"columns": "basic,frame"}),
    ("lo", {"columns": "process"}),
    ("lo", {"path": "v4"}),
    ("lo", {"direction": "up"}),
    ("lo", {"ring_bytes": -1}),
    ("nothing0", {}),
]


def attempt(function, source, arguments):
    try:
        function(source, **arguments)
        print("no error:", source, arguments)
    except strait.Error as error:
        print(f"{type(error).__name__}: {error}")


for source, arguments in CALLS:
    attempt(strait.capture, source, arguments)
attempt(strait.read, "/nowhere", {})
