"""Programs on loopback, started and ended by their process ids."""

import contextlib
import os
import pathlib
import random
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request


def wait_until(condition, within_s, what, every_s=0.1):
    deadline = time.monotonic() + within_s
    while not (got := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_s} s: {what}")
        time.sleep(every_s)
    return got


def free_ports(n):
    """Ports that nobody listens on. Linux gives connections those from 32768 on: a program that takes long to start, or starts again, still finds
    these free."""
    held = []
    for port in random.sample(range(16_384, 32_768), 16_384):
        if len(held) == n:
            break
        with contextlib.suppress(OSError):
            held.append(socket.create_server(("127.0.0.1", port)))
    ports = [s.getsockname()[1] for s in held]
    for s in held:
        s.close()
    return ports


def get(url):
    """Status and text of a GET, (0, reason) if nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=10) as r:
            return r.status, r.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()
    except OSError as e:
        return 0, str(e)


class Process:
    """A program with its log. It leads a process group, because an engine has workers of its own that must end with it."""

    def __init__(self, name, argv, env, log):
        # Where these tests are killed, the kernel kills what they started.
        self.name, self.argv, self.env, self.log = name, ["setpriv", "--pdeathsig", "KILL", *argv], env, log
        self.process = None

    def start(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.argv, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def kill(self):
        """Ends it as a crash does, and returns when it is gone."""
        self._end(signal.SIGKILL)

    def stop(self):
        if self.process is not None and self.process.poll() is None:
            self._signal(signal.SIGTERM)
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                pass
        self._end(signal.SIGKILL)

    def _signal(self, number):
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            pass

    def _end(self, number):
        if self.process is not None:
            self._signal(number)
            self.process.wait()
            self.process = None

    def answers(self, url):
        if self.process.poll() is not None:
            raise AssertionError(f"{self.name} ended with {self.process.returncode}:\n{self.tail()}")
        return get(url)[0] == 200

    def text(self):
        """All it wrote."""
        return pathlib.Path(self.log).read_text(errors="replace")

    def tail(self, lines=40):
        return "\n".join(self.text().splitlines()[-lines:])


class Router(Process):
    """A grapevine node whose answers show its choice. settings are further flags; GRAPEVINE_* variables of this process are settings of all."""

    def __init__(self, name, binary, directory, *settings):
        data, admin = free_ports(2)
        self.url, self.admin = f"http://127.0.0.1:{data}", f"http://127.0.0.1:{admin}"
        argv = [binary, "serve", "--node-name", name, "--listen", f"127.0.0.1:{data}", "--admin", f"127.0.0.1:{admin}",
                "--secret", "a secret for tests only", "--drain-grace", "0s", "--response-headers", "all", *settings]
        super().__init__(name, argv, dict(os.environ), os.path.join(directory, name + ".log"))

    def ready(self):
        return self.answers(self.url + "/readyz")
