"""Caller of the tap broker that does what the library does not: broker.py MODE.

Runs under `strait run --path tap` in a namespace with an interface `right`, see `run_tap.rs`.
Prints `passed` at the end, else raises an error.
"""

import array
import contextlib
import ctypes
import os
import socket
import struct
import sys

VERSION = 3
DONE = b"\0"
SO_LOCK_FILTER = 44


def instruction(code, k):
    return struct.pack("=HBBI", code, 0, 0, k)


ACCEPT = instruction(6, 262144)
REJECT = instruction(6, 0)


def send(to, message, descriptors=()):
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    to.sendmsg([message], rights if descriptors else [])


def receive(of):
    message, ancillary, _, _ = of.recvmsg(40000, 4096)
    descriptors = array.array("i")
    for _, _, data in ancillary:
        descriptors.frombytes(data)
    return message, list(descriptors)


def open_tap(proof, ring_bytes=1):
    """Returns the broker's answer, and the descriptors of a tap: its socket, rings, doorbell."""
    number = int(os.environ["STRAIT_TAP_BROKER"].split(":")[0])
    requests = socket.socket(fileno=os.dup(number))
    own, brokers = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    call = bytes([0, VERSION, 0]) + struct.pack("=II", ring_bytes, 1) + b"right"
    send(requests, call, [brokers.fileno(), proof.fileno()])
    brokers.close()
    return receive(own)


def packet_socket():
    return socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)


def locked():
    proof = packet_socket()
    code = ctypes.create_string_buffer(REJECT)
    program = struct.pack("HP", 1, ctypes.addressof(code))
    proof.setsockopt(socket.SOL_SOCKET, 26, program)
    answer, _ = open_tap(proof)
    assert answer == DONE, answer
    proof.setsockopt(socket.SOL_SOCKET, SO_LOCK_FILTER, 1)
    answer, descriptors = open_tap(proof)
    assert answer != DONE and not descriptors, answer


def brokers():
    """Returns the broker's processes, when they are ready: the server and its receivers."""
    answer, _ = open_tap(packet_socket())
    assert answer == DONE, answer
    network = os.readlink("/proc/self/ns/net")
    found = []
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{process}/cmdline", "rb") as command:
                is_broker = b"tap-broker" in command.read()
            if is_broker and os.readlink(f"/proc/{process}/ns/net") == network:
                found.append(f"/proc/{process}")
        except OSError:
            pass
    assert len(found) >= 2, found
    return found


def descriptors():
    """The program was started with a descriptor of /dev/zero."""
    assert os.readlink("/proc/self/fd/9") == "/dev/zero"
    for process in brokers():
        for number in os.listdir(process + "/fd"):
            # A receiver closes its copies of a reply.
            with contextlib.suppress(FileNotFoundError):
                assert os.readlink(f"{process}/fd/{number}") != "/dev/zero", process


def identity():
    """The program was started with a limit of 64 open files."""
    for process in brokers():
        with open(process + "/comm") as name:
            assert name.read().strip() == "strait-broker"
        with open(process + "/limits") as limits:
            files = next(line for line in limits if line.startswith("Max open files"))
        assert int(files.split()[3]) > 64, files


globals()[sys.argv[1]]()
print("passed")
