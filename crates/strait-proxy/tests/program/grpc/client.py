"""gRPC client for tests. Runs a case, and prints its result."""

import argparse
import queue

import grpc

PIECE = bytes(range(256)) * 256
MIB = 1 << 20

parser = argparse.ArgumentParser()
parser.add_argument("target")
parser.add_argument("case")
parser.add_argument("number", type=int, nargs="?", default=0)
parser.add_argument("--root", help="certificate of an authority; without it the connection has no TLS")
parser.add_argument("--host", help="host of the calls")
parser.add_argument("--service", default="test.Test")
arguments = parser.parse_args()
argument = arguments.number
options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1), ("grpc.enable_retries", 0)]
if arguments.root:
    options.append(("grpc.ssl_target_name_override", arguments.host))
    with open(arguments.root, "rb") as root:
        credentials = grpc.ssl_channel_credentials(root.read())
    channel = grpc.secure_channel(arguments.target, credentials, options=options)
else:
    channel = grpc.insecure_channel(arguments.target, options=options)


def stub(kind, name):
    return getattr(channel, kind)(f"/{arguments.service}/{name}")


def status_of(call):
    try:
        call()
    except grpc.RpcError as error:
        return f"{error.code().name} {error.details()}"
    return "OK"


def unary():
    response, call = stub("unary_unary", "Unary").with_call(b"hello", timeout=60)
    metadata = dict(call.initial_metadata()), dict(call.trailing_metadata())
    print(response.decode(), metadata[0]["x-begin"], metadata[1]["x-end"], metadata[1]["x-end-bin"])


def client_stream():
    pieces = (PIECE for _ in range(argument * MIB // len(PIECE)))
    print(stub("stream_unary", "ClientStream")(pieces).decode())


def server_stream():
    total = 0
    for piece in stub("unary_stream", "ServerStream")(str(argument * MIB // len(PIECE)).encode()):
        assert piece == PIECE
        total += len(piece)
    print(total)


def both():
    """Sends each message after the response to the one before."""
    messages = queue.SimpleQueue()
    responses = stub("stream_stream", "Both")(iter(messages.get, None))
    for index in range(argument):
        messages.put(str(index).encode())
        assert next(responses) == str(index).encode() + b"!"
    messages.put(None)
    assert next(responses, None) is None
    print(argument, responses.code().name)


def both_at_once():
    pieces = (PIECE for _ in range(argument * MIB // len(PIECE)))
    print(sum(len(piece) - 1 for piece in stub("stream_stream", "Both")(pieces)))


def status():
    print(status_of(lambda: stub("unary_unary", "Fail")(b"")))


def deadline():
    """The deadline reaches the server, and its end does."""
    left = float(stub("unary_unary", "TimeoutOf")(b"", timeout=1000))
    assert 900 < left <= 1000, left
    print(status_of(lambda: stub("unary_unary", "Wait")(b"", timeout=1)).split()[0])
    print(stub("unary_unary", "Cancellations")(b"").decode())


def cancel():
    call = stub("unary_unary", "Wait").future(b"")
    call.cancel()
    stream = stub("stream_stream", "WaitStream")(iter(queue.SimpleQueue().get, None))
    print(next(stream).decode())
    stream.cancel()
    print(stub("unary_unary", "Cancellations")(b"").decode())


def many():
    """Calls side by side on one connection."""
    calls = [stub("unary_unary", "Unary").future(str(index).encode()) for index in range(argument)]
    assert all(call.result() == str(index).encode()[::-1] for index, call in enumerate(calls))
    print(argument)


def rate():
    """Calls in a row: the first ones are answered, and then a limit refuses some."""
    results = [status_of(lambda: stub("unary_unary", "Unary")(b"")).split()[0] for _ in range(argument)]
    first = next((index for index, result in enumerate(results) if result != "OK"), argument)
    print(first, *sorted(set(results)))


locals()[arguments.case]()
