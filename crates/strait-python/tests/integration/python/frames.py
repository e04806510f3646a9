"""frames.py INTERFACE PATH COUNT: prints what the views of frames have after the capture is closed.

It prints the number of frames so far after each 100, so that the sender can wait for it.
"""

import json
import sys

import strait

interface, path, count = sys.argv[1:]
frames = strait.frames(interface, path=path, count=int(count), ring_bytes=256 << 10)
print("ready", flush=True)
views, length, direction = [], 0, set()
for frame in frames:
    assert frame.data.readonly and bytes(frame) == frame.data and len(frame) == frame.captured_length
    assert abs(frame.time - frame.time_ns / 1e9) < 1e-6 and frame.link_type == 1
    views.append(frame.data)
    length += frame.length
    direction.add(frame.direction)
    if len(views) % 100 == 0:
        print("frames:", len(views), flush=True)
frames.session.close()
ledger = frames.session.ledger
del frames
print(json.dumps({"frames": [view.hex() for view in views], "length": length, "direction": sorted(direction), "ledger": ledger}))
