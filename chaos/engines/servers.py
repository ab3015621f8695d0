"""The engines, and the routers in front of them."""

import collections
import json
import os
import pathlib
import subprocess
import sys
import time
import urllib.request

from processes import Process, Router, free_ports, get, wait_until
from sides import Side

MODEL = "tiny"
BLOCK = 32  # tokens
BLOCKS = 512  # of an engine's cache: 16,384 tokens
LONGEST = 8192  # tokens of prompt and answer
STARTUP_S = 600  # where twenty other programs share two cores
SLOW_START_S = 5  # rather than the routers' 30 s, which only prolong the tests


class Launcher:
    """Starts engines by launcher.py. cache is a directory that vLLM keeps between runs."""

    def __init__(self, cache, directory):
        here = os.path.dirname(os.path.abspath(__file__))
        env = os.environ | {
            "VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1", "VLLM_CACHE_ROOT": cache,
            "VLLM_SERVER_DEV_MODE": "1",  # opens /reset_prefix_cache
            "TORCH_COMPILE_DISABLE": "1",  # compiling takes longer here than what it makes faster
        }
        env.pop("PYTHONDONTWRITEBYTECODE", None)  # the environment is the tests' own, and half of its start would be compiling
        with open(os.path.join(directory, "launcher.log"), "ab") as log:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "nice", "-n", "10", sys.executable, os.path.join(here, "launcher.py")],
                env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)
        self._line()

    def _line(self):
        line = self._process.stdout.readline()
        if not line:
            raise AssertionError(f"launcher.py ended with {self._process.wait()}: see launcher.log")
        return line

    def start(self, argv, log):
        self._process.stdin.write(json.dumps({"argv": argv, "log": log}) + "\n")
        self._process.stdin.flush()
        return Forked(int(self._line()))

    def stop(self):
        self._process.kill()
        self._process.wait()


class Forked:
    """A process of the launcher, with what Process uses of a subprocess.Popen."""

    returncode = "an unknown status"

    def __init__(self, pid):
        self.pid = pid

    def poll(self):
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return self.returncode
        return None

    def wait(self, timeout=60):
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired([str(self.pid)], timeout)
            time.sleep(0.02)


class VLLM(Process):
    CLEAR = "/reset_prefix_cache"

    def __init__(self, name, model, launcher, directory):
        port, events, replay = free_ports(3)
        self.url, self.events, self._launcher = f"http://127.0.0.1:{port}", f"tcp://127.0.0.1:{events}", launcher
        # The publisher binds only to a wildcard; with a concrete host it would connect, and subscribers would hear nothing.
        stream = {"enable_kv_cache_events": True, "publisher": "zmq", "topic": "kv", "endpoint": f"tcp://*:{events}",
                  "replay_endpoint": f"tcp://*:{replay}"}
        argv = ["--model", model, "--served-model-name", MODEL, "--load-format", "dummy", "--enforce-eager", "--host", "127.0.0.1",
                "--port", str(port), "--max-model-len", str(LONGEST), "--max-num-seqs", "32", "--block-size", str(BLOCK),
                "--num-gpu-blocks-override", str(BLOCKS), "--enable-prompt-tokens-details", "--enable-auto-tool-choice",
                "--tool-call-parser", "hermes", "--kv-events-config", json.dumps(stream),
                # A grammar may allow any white space, and random weights may write nothing else.
                "--structured-outputs-config", json.dumps({"backend": "xgrammar", "disable_any_whitespace": True})]
        super().__init__(name, argv, None, os.path.join(directory, name + ".log"))
        self.argv = argv

    def start(self):
        self.process = self._launcher.start(self.argv, self.log)

    def ready(self):
        return self.answers(self.url + "/health")

    def version(self):
        return "vLLM " + json.loads(get(self.url + "/version")[1])["version"]

    def running(self):
        return metric(self, "vllm:num_requests_running") + metric(self, "vllm:num_requests_waiting")

    def generated(self):
        """Output tokens since its start. vLLM counts no abort of a request whose client has left."""
        return metric(self, "vllm:generation_tokens_total")


class SGLang(Process):
    CLEAR = "/flush_cache?timeout=30"  # waits that long for running requests

    def __init__(self, name, model, directory):
        port, events, replay = free_ports(3)
        self.url, self.events = f"http://127.0.0.1:{port}", f"tcp://127.0.0.1:{events}"
        env = os.environ | {
            "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TORCHDYNAMO_DISABLE": "1",
            "SGLANG_USE_CPU_ENGINE": "0",  # the registry's sglang-kernel is for GPUs; without it SGLang computes by torch
            "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",  # or /health would compute a token, and take a second at least: docs/operate.md
        }
        env.pop("PYTHONDONTWRITEBYTECODE", None)  # as the launcher's
        stream = {"publisher": "zmq", "topic": "kv", "endpoint": f"tcp://*:{events}", "replay_endpoint": f"tcp://*:{replay}"}
        argv = ["nice", "-n", "10", sys.executable, "-m", "sglang.launch_server", "--model-path", model, "--served-model-name", MODEL,
                "--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch", "--grammar-backend", "xgrammar",
                "--cuda-graph-backend-decode", "disabled", "--cuda-graph-backend-prefill", "disabled", "--disable-overlap-schedule",
                "--host", "127.0.0.1", "--port", str(port), "--context-length", str(LONGEST), "--max-running-requests", "32",
                "--page-size", str(BLOCK), "--max-total-tokens", str(BLOCKS * BLOCK), "--enable-cache-report", "--enable-metrics",
                "--tool-call-parser", "qwen", "--constrained-json-disable-any-whitespace", "--random-seed", "1",
                "--kv-events-config", json.dumps(stream)]
        super().__init__(name, argv, env, os.path.join(directory, name + ".log"))

    def ready(self):
        return self.answers(self.url + "/health")

    def version(self):
        return "SGLang " + json.loads(get(self.url + "/server_info")[1])["version"]

    def running(self):
        """By its loads: its metrics are up to 40 steps old."""
        status, page = get(self.url + "/v1/loads?include=core")
        if status != 200:
            raise AssertionError(f"{self.name} does not give its loads: {status} {page}")
        return sum(load["num_running_reqs"] + load["num_waiting_reqs"] for load in json.loads(page)["loads"])

    def generated(self):
        """As vLLM's."""
        return metric(self, "sglang:realtime_tokens_total", 'mode="decode"')


def metric(engine, name, label=""):
    """The sum of a metric's lines that have the label."""
    status, page = get(engine.url + "/metrics")
    if status != 200:
        raise AssertionError(f"{engine.name} does not give its metrics: {status} {page}")
    return sum(float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line.startswith(name + "{") and label in line)


class Node(Router):
    """A router of a fleet that founds itself at the first one's address."""

    def __init__(self, name, binary, engines, gossip, first, directory, *settings):
        self.gossip, self.lines = gossip, os.path.join(directory, name + ".requests")
        super().__init__(
            name, binary, directory, "--gossip", f"127.0.0.1:{gossip}", "--join", f"127.0.0.1:{first}", "--founder", f"127.0.0.1:{first}",
            "--gossip-insecure", "--slow-start", f"{SLOW_START_S}s", "--data-dir", os.path.join(directory, name), "--access-log", "all",
            "--access-log-file", self.lines, *(f"--backend={e.url},name={e.name}" for e in engines), *settings)

    def backends(self):
        """Its view of the engines, by name."""
        return {b["name"]: b for b in json.loads(get(self.admin + "/backends")[1])["backends"]}

    def held(self, messages, engine):
        """The tokens of a chat that it expects in an engine's cache."""
        body = json.dumps({"model": MODEL, "messages": messages}).encode()
        with urllib.request.urlopen(self.admin + "/explain", body, timeout=10) as r:
            receipt = json.load(r)
        held = [c["held_tokens"] for c in receipt["candidates"] if c["backend"] == engine]
        if not held:
            raise AssertionError(f"{self.name} would not use {engine}: {receipt}; {self.backends()[engine]}")
        return held[0]

    def requests(self):
        """What it logged of each finished request, by the request's id."""
        lines = pathlib.Path(self.lines).read_text()
        return {r["id"]: r for r in map(json.loads, lines[:lines.rfind("\n") + 1].splitlines())}


class Fleet:
    """Routers in front of all engines, which share what they know. settings are flags of each."""

    def __init__(self, name, binary, engines, directory, *settings):
        self.name, self.engines, self.nodes, self.sides = name, engines, [], []
        self._node = lambda name, gossip, first, *more: Node(name, binary, engines, gossip, first, directory, *settings, *more)

    def add(self, n, *more):
        """Starts n more routers, with more flags, and returns when they are ready."""
        new = []
        for gossip in free_ports(n):
            new.append(self._node(f"{self.name}-{len(self.nodes)}", gossip, self.nodes[0].gossip if self.nodes else gossip, *more))
            self.nodes.append(new[-1])
            new[-1].start()
        for node in new:
            wait_until(node.ready, 60, f"{node.name} is ready")
            self.sides.append(Side(node.url))

    def follow(self):
        """Waits until two routers follow the events of each engine, and miss none."""
        def all_exact():
            known = collections.Counter(name for node in self.nodes for name, b in node.backends().items() if b["cache"]["known"] == "exact")
            return known == {e.name: 2 for e in self.engines}
        wait_until(all_exact, 60, f"two of the routers {self.name} follow the events of each engine")

    def warm(self):
        """Waits until no engine is in slow start: until then a router leaves it out for some of the prompts that it does not hold."""
        def over():
            return all(min(b.get("since_s", 0), b["health"].get("since_s", 0)) > SLOW_START_S for node in self.nodes for b in node.backends().values())
        wait_until(over, 3 * SLOW_START_S, f"the routers {self.name} send engines their whole share")

    def requests(self, ids):
        """What the routers logged of requests, by their ids."""
        def written():
            lines = {k: v for node in self.nodes for k, v in node.requests().items()}
            return lines if ids <= lines.keys() else None
        return wait_until(written, 30, f"the routers {self.name} log all requests")

    def stop(self):
        for node in self.nodes:
            node.stop()
