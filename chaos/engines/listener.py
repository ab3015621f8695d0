"""An engine's cache events, as they come."""

import time

import msgspec
import zmq

_context = zmq.Context()


class Listener:
    """Hears the events of an engine at tcp://HOST:PORT from its creation on."""

    def __init__(self, address):
        self._socket = _context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        # Until the engine has taken the subscription it publishes to nobody.
        monitor = self._socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self._socket.connect(address)
        if not monitor.poll(10_000):
            raise AssertionError(f"no publisher answers at {address}")
        self._socket.disable_monitor()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._socket.close(0)

    def until(self, done, within_s, what):
        """Hands the events to done one by one until it returns something true."""
        deadline = time.monotonic() + within_s
        while (left := deadline - time.monotonic()) > 0:
            if self._socket.poll(1000 * left):
                _, _, payload = self._socket.recv_multipart()
                if any([done(event) for event in msgspec.msgpack.decode(payload)[1]]):
                    return
        raise AssertionError(f"not within {within_s} s: {what}")
