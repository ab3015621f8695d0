"""What the tests of the official clients begin with. Each is a script with the arguments ROUTER LAB LOGS: the two programs, and a directory."""

import sys
import uuid

from processes import Process, free_ports

GRAPEVINE, LAB, LOGS = sys.argv[1:]
MODEL = "test-model"


class Engine(Process):
    """An emulated engine."""

    def __init__(self, name):
        port, = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        super().__init__(name, [LAB, "engine", "--listen", f"127.0.0.1:{port}", "--model", MODEL], None, f"{LOGS}/{name}.log")

    def ready(self):
        return self.answers(self.url + "/health")


def prose(topic, words=600):
    """Text of its own for each topic, long enough to fill many cache blocks."""
    return " ".join(f"{topic}-{i}" for i in range(words))


def user(text):
    return {"role": "user", "content": text}


def unique():
    return uuid.uuid4().hex


def raises(kind, call):
    try:
        call()
    except kind as e:
        return e
    raise AssertionError(f"{kind.__name__} was not raised")
