"""unread.py INTERFACE: takes three frames after SIGUSR1, and prints the ledger of the closed session."""

import json
import signal
import sys

import strait

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
with strait.capture(sys.argv[1]) as session:
    print("ready", flush=True)
    signal.sigwait({signal.SIGUSR1})
    assert len([next(session.frames()) for _ in range(3)]) == 3
assert next(session, None) is None and next(session.frames(), None) is None
session.stop()
session.close()
print(json.dumps(session.ledger))
