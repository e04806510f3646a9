"""gRPC server for tests: `server.py [KEY CERTIFICATE]`. It echoes in all four forms, and waits for cancelled calls. Prints
its port."""

import concurrent.futures
import sys
import threading
import time

import grpc

PIECE = bytes(range(256)) * 256
cancelled = threading.Semaphore(0)


def unary(request, context):
    context.send_initial_metadata((("x-begin", "1"),))
    context.set_trailing_metadata((("x-end", str(len(request))), ("x-end-bin", b"\x00\xff")))
    return request[::-1]


def client_stream(requests, context):
    return str(sum(len(request) for request in requests)).encode()


def server_stream(request, context):
    for _ in range(int(request)):
        yield PIECE


def both(requests, context):
    for request in requests:
        yield request + b"!"


def fail(request, context):
    context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not \u00e4 this way")


def count_end(context):
    """Counts a call when it is cancelled. Returns the event of that."""
    ended = threading.Event()

    def end():
        cancelled.release()
        ended.set()

    # False: the call has ended already.
    if not context.add_callback(end):
        end()
    return ended


def wait(request, context):
    """Waits until the call is cancelled; the next call of `cancellations` returns then."""
    count_end(context).wait()
    return b""


def wait_stream(requests, context):
    """Sends a message, then as `wait`. After a cancelled message it is not continued, so it counts the end before."""
    ended = count_end(context)
    yield b"begun"
    ended.wait()


def cancellations(request, context):
    """Waits for a cancelled call."""
    if not cancelled.acquire(timeout=60):
        context.abort(grpc.StatusCode.NOT_FOUND, "no call was cancelled")
    return b"cancelled"


def timeout_of(request, context):
    return str(context.time_remaining()).encode()


METHODS = {
    "Unary": grpc.unary_unary_rpc_method_handler(unary),
    "ClientStream": grpc.stream_unary_rpc_method_handler(client_stream),
    "ServerStream": grpc.unary_stream_rpc_method_handler(server_stream),
    "Both": grpc.stream_stream_rpc_method_handler(both),
    "Fail": grpc.unary_unary_rpc_method_handler(fail),
    "Wait": grpc.unary_unary_rpc_method_handler(wait),
    "WaitStream": grpc.stream_stream_rpc_method_handler(wait_stream),
    "Cancellations": grpc.unary_unary_rpc_method_handler(cancellations),
    "TimeoutOf": grpc.unary_unary_rpc_method_handler(timeout_of),
}

options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
server = grpc.server(concurrent.futures.ThreadPoolExecutor(32), options=options)
for service in ["test.Test", "shop.Orders"]:
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, METHODS),))
if len(sys.argv) > 2:
    key, certificate = (open(name, "rb").read() for name in sys.argv[1:3])
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(key, certificate)]))
else:
    port = server.add_insecure_port("127.0.0.1:0")
server.start()
print(port, flush=True)
while True:
    time.sleep(3600)
