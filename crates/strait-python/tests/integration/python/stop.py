"""stop.py INTERFACE: another thread stops the capture after SIGUSR1; prints the rows and the ledger."""

import json
import signal
import sys
import threading

import strait

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
session = strait.capture(sys.argv[1], batch_time=3600)


def stop():
    signal.sigwait({signal.SIGUSR1})
    assert session.ledger["received"] > 0
    session.stop()


thread = threading.Thread(target=stop)
thread.start()
print("ready", flush=True)
rows = sum(len(batch) for batch in session)
thread.join()
print(json.dumps({"rows": rows, "ledger": session.ledger}))
