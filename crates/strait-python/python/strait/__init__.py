"""Packets of Linux interfaces and of capture files, as Arrow record batches and as frames.

    import strait

    with strait.capture("eth0", filter="udp") as session:
        for batch in session:
            table = pyarrow.record_batch(batch)
    print(session.ledger)
"""

from ._strait import (
    Error,
    Frame,
    Frames,
    RecordBatch,
    RefusedError,
    Session,
    UsageError,
    __version__,
    capture,
    read,
)

__all__ = [
    "Error",
    "Frame",
    "Frames",
    "RecordBatch",
    "RefusedError",
    "Session",
    "UsageError",
    "__version__",
    "capture",
    "frames",
    "read",
]


def frames(interface, **options):
    """Opens a capture like capture(), and returns an iterator over its frames.

    The attribute `session` of the iterator has the ledger.
    """
    return capture(interface, **options).frames()
