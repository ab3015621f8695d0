"""Starts engines quickly: a process that has imported vLLM once and forks for each.

Reads lines of JSON, {"argv": [...], "log": PATH}, from its input, and answers each with the id of a process, which leads a group and runs
vLLM's server with these arguments. Started in the usual way, each of an engine's three processes imports vLLM: 18 of the 20 seconds of
computing that each needs.
"""

import ctypes
import json
import os
import signal
import sys

# What an engine would import later.
import vllm.entrypoints.launchers.api_server.entry
import vllm.model_executor.models.qwen3
import vllm.utils.system_utils
import vllm.v1.engine.async_llm
import vllm.v1.worker.cpu_worker  # noqa: F401

PR_SET_PDEATHSIG = 1


def fork_workers():
    """Lets an engine fork its further processes. For CPUs vLLM would spawn them, since a forked one cannot have OpenMP's threads: here it has none."""
    if not hasattr(vllm.utils.system_utils, "_maybe_force_spawn"):
        raise SystemExit("this vLLM chooses how it starts processes in another place than _maybe_force_spawn: change launcher.py")
    vllm.utils.system_utils._maybe_force_spawn = lambda: os.environ.update(VLLM_WORKER_MULTIPROC_METHOD="fork")


def end_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def engine(argv, log):
    """Becomes an engine."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    for number, file, flags in [(0, os.devnull, os.O_RDONLY), (1, log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)]:
        os.dup2(os.open(file, flags, 0o600), number)
    os.dup2(1, 2)
    sys.argv = ["vllm", *argv]
    vllm.entrypoints.launchers.api_server.entry.main()


def main():
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # libraries print to the output
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # an engine that has ended leaves nothing
    fork_workers()
    os.register_at_fork(after_in_child=end_with_parent)  # also the engines' own processes
    print("ready", file=answers)
    for line in sys.stdin:
        order = json.loads(line)
        if (child := os.fork()) == 0:
            answers.close()
            engine(order["argv"], order["log"])
            return
        print(child, file=answers)


if __name__ == "__main__":
    main()
