"""Roles of processes for the test of owners: ROLE ADDRESS [PORT [PROCESSES ROUNDS]]."""

import ctypes
import os
import signal
import socket
import sys

# <linux/prctl.h>
PR_SET_PDEATHSIG = 1


def say(*words):
    """Prints a line at once: a forked process must not print it again."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def tag():
    return b"pid=%d;" % os.getpid()


def fork(work, *arguments):
    """Starts a process, which ends with this one: the test ends only the first of them."""
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                return None
            work(*arguments)
        finally:
            os._exit(0)
    return pid


def family(address):
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def listener(address, port, reuse=False):
    made = socket.socket(family(address))
    if reuse:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.bind((address, port))
    made.listen(128)
    return made


def datagrams(address, port, reuse=False):
    made = socket.socket(family(address), socket.SOCK_DGRAM)
    made.settimeout(20)
    if reuse:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.bind((address, port))
    return made


def answer(connection):
    with connection:
        while connection.recv(100):
            connection.sendall(tag())


def accept(listening):
    say("uses", listening.getsockname()[1], os.getpid())
    while True:
        answer(listening.accept()[0])


def reflect(made):
    made.settimeout(None)
    while True:
        made.sendto(tag(), made.recvfrom(100)[1])


def prefork(address):
    """Several processes accept from one socket."""
    listening = listener(address, 0)
    for _ in range(3):
        fork(accept, listening)
    announce(listening)
    accept(listening)


def greeting(address):
    """A process accepts, and another one sends first."""
    listening = listener(address, 0)
    port = listening.getsockname()[1]
    say("uses", port, os.getpid())
    announce(listening)

    def greet(connection):
        say("uses", port, os.getpid())
        connection.sendall(tag())
        answer(connection)

    while True:
        with listening.accept()[0] as connection:
            os.waitpid(fork(greet, connection), 0)


def reuseport(address):
    """Several sockets listen on one port, each in its process."""
    first = listener(address, 0, reuse=True)
    port = first.getsockname()[1]
    for _ in range(3):
        read, write = os.pipe()
        fork(lambda: (first.close(), others(listener(address, port, reuse=True), write)))
        os.read(read, 1)
    announce(first)
    accept(first)


def others(listening, ready):
    os.write(ready, b"r")
    accept(listening)


def udp(address):
    made = datagrams(address, 0)
    say("uses", made.getsockname()[1], os.getpid())
    announce(made)
    reflect(made)


def effective(address):
    """Sends as another effective user and under another name after its first datagram."""
    changed(address, lambda: os.seteuid(65534))


def permanent(address):
    changed(address, lambda: os.setuid(65533))


def changed(address, change):
    made = datagrams(address, 0)
    say("uses", made.getsockname()[1], os.getpid())
    announce(made)
    client = made.recvfrom(100)[1]
    made.sendto(tag(), client)
    with open("/proc/self/comm", "w") as name:
        name.write("renamed")
    change()
    reflect(made)


def announce(made):
    say("port", made.getsockname()[1])
    say("ready")


def connect(address, port, processes, rounds):
    """Processes that connect, one after the other, `rounds` times each."""

    def rounds_of_one():
        for _ in range(rounds):
            with socket.create_connection((address, port), timeout=20) as connection:
                say("uses", connection.getsockname()[1], os.getpid())
                connection.sendall(tag())
                connection.recv(100)

    for child in [fork(rounds_of_one) for _ in range(processes)]:
        os.waitpid(child, 0)


def send(address, port, processes, rounds):
    """Two processes send by one socket in turn, each to a server that answers."""
    made = datagrams("", 0)
    for _ in range(processes):
        for _ in range(rounds):
            one_datagram(made, address, port)
        os.waitpid(fork(lambda: [one_datagram(made, address, port) for _ in range(rounds)]), 0)


def one_datagram(made, address, port):
    made.sendto(tag(), (address, port))
    made.recv(100)


def same_port(address, port, processes, rounds):
    """Processes that bind the same port, one after the other."""
    made = datagrams("", 0)
    own = made.getsockname()[1]
    made.close()

    def short_lived():
        made = datagrams("", own)
        for _ in range(rounds):
            one_datagram(made, address, port)

    for _ in range(processes):
        os.waitpid(fork(short_lived), 0)


role, address, *numbers = sys.argv[1:]
globals()[role](address, *map(int, numbers))
