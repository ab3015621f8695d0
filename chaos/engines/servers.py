"""The engines, and the routers in front of them."""

import json
import os
import sys

from processes import Process, Router, free_ports, get

MODEL = "tiny"
BLOCK = 32  # tokens
BLOCKS = 512  # of an engine's cache: 16,384 tokens
LONGEST = 8192  # tokens of prompt and answer
# An engine starts in 40 s on a machine with nothing else to do, and in 6 minutes where eight other programs share two cores.
STARTUP_S = 900


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


class Node(Router):
    """A router of a fleet that founds itself at the first one's address."""

    def __init__(self, name, binary, engines, gossip, first, directory):
        super().__init__(
            name, binary, directory, "--gossip", f"127.0.0.1:{gossip}", "--join", f"127.0.0.1:{first}", "--founder", f"127.0.0.1:{first}",
            "--gossip-insecure", "--data-dir", os.path.join(directory, name), *(f"--backend={e.url},name={e.name}" for e in engines))

    def backends(self):
        """Its view of the engines, by name."""
        return {b["name"]: b for b in json.loads(get(self.admin + "/backends")[1])["backends"]}


def nodes(binary, engines, directory):
    """Two routers of one fleet."""
    gossip = free_ports(2)
    return [Node(f"router-{i}", binary, engines, port, gossip[0], directory) for i, port in enumerate(gossip)]
