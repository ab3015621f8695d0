"""Engines and routers as processes on loopback, started and ended by their ids."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

MODEL = "tiny"
BLOCK = 32  # tokens
BLOCKS = 512  # of an engine's cache: 16,384 tokens
LONGEST = 8192  # tokens of prompt and answer
# An engine starts in 40 s on a machine with nothing else to do, and in 6 minutes where eight other programs share two cores.
STARTUP_S = 900


def wait_until(condition, within_s, what, every_s=0.2):
    deadline = time.monotonic() + within_s
    while not (got := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_s} s: {what}")
        time.sleep(every_s)
    return got


def free_ports(n):
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
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

    def tail(self, lines=40):
        return "\n".join(pathlib.Path(self.log).read_text(errors="replace").splitlines()[-lines:])


class Engine(Process):
    def __init__(self, name, model, cache, directory):
        port, events, replay = free_ports(3)
        self.url = f"http://127.0.0.1:{port}"
        # The publisher binds only to a wildcard; with a concrete host it would connect, and subscribers would hear nothing.
        stream = (f'{{"enable_kv_cache_events":true,"publisher":"zmq","topic":"kv","endpoint":"tcp://*:{events}",'
                  f'"replay_endpoint":"tcp://*:{replay}"}}')
        argv = ["nice", "-n", "10", sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model,
                "--served-model-name", MODEL, "--load-format", "dummy", "--enforce-eager", "--host", "127.0.0.1", "--port", str(port),
                "--max-model-len", str(LONGEST), "--max-num-seqs", "32", "--block-size", str(BLOCK),
                "--num-gpu-blocks-override", str(BLOCKS), "--enable-prompt-tokens-details", "--enable-auto-tool-choice",
                "--tool-call-parser", "hermes", "--kv-events-config", stream]
        env = os.environ | {
            "VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1", "VLLM_CACHE_ROOT": cache,
            "VLLM_SERVER_DEV_MODE": "1",  # opens /reset_prefix_cache
            # vLLM looks for its compiler's helpers in PATH.
            "PATH": os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"],
        }
        super().__init__(name, argv, env, os.path.join(directory, name + ".log"))

    def ready(self):
        return self.answers(self.url + "/health")

    def metric(self, name):
        status, page = get(self.url + "/metrics")
        if status != 200:
            raise AssertionError(f"{self.name} does not give its metrics: {status} {page}")
        return sum(float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line.startswith(name + "{"))

    def running(self):
        return self.metric("vllm:num_requests_running") + self.metric("vllm:num_requests_waiting")

    def generated(self):
        """Output tokens since its start. vLLM counts no abort of a request whose client has left."""
        return self.metric("vllm:generation_tokens_total")


class Router(Process):
    def __init__(self, name, binary, engines, gossip, first, directory):
        data, admin = free_ports(2)
        self.url, self.admin = f"http://127.0.0.1:{data}", f"http://127.0.0.1:{admin}"
        argv = [binary, "serve", "--node-name", name, "--listen", f"127.0.0.1:{data}", "--admin", f"127.0.0.1:{admin}",
                "--gossip", f"127.0.0.1:{gossip}", "--join", f"127.0.0.1:{first}", "--founder", f"127.0.0.1:{first}",
                "--gossip-insecure", "--secret", "a secret for tests only", "--data-dir", os.path.join(directory, name),
                "--drain-grace", "0s", "--response-headers", "all"]
        for e in engines:
            argv += ["--backend", f"{e.url},name={e.name}"]
        super().__init__(name, argv, dict(os.environ), os.path.join(directory, name + ".log"))

    def ready(self):
        return self.answers(self.url + "/readyz")

    def backends(self):
        """Its view of the engines, by name."""
        return {b["name"]: b for b in json.loads(get(self.admin + "/backends")[1])["backends"]}


def routers(binary, engines, directory):
    """Two routers of one fleet. GRAPEVINE_* variables of this process are settings of both."""
    gossip = free_ports(2)
    return [Router(f"router-{i}", binary, engines, port, gossip[0], directory) for i, port in enumerate(gossip)]
