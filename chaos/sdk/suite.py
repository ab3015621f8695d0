"""Runs the functions of a module whose names begin with test_, in the order in which they stand there."""

import os
import signal
import sys
import threading
import time
import traceback


def watchdog(seconds):
    """A test that hangs must not hang the build."""
    def bark():
        print(f"not done after {seconds} s", flush=True)
        os.kill(os.getpid(), signal.SIGTERM)
    t = threading.Timer(seconds, bark)
    t.daemon = True
    t.start()


def later(seconds, call):
    """Calls it in a thread of its own, which the caller joins."""
    t = threading.Timer(seconds, call)
    t.start()
    return t


def run(module):
    """Prints one line a test and closes with "N passed, M failed". Returns the exit status: 1 if any failed."""
    passed = failed = 0
    for name, test in list(module.items()):
        if not name.startswith("test_"):
            continue
        begun = time.monotonic()
        try:
            test()
        except Exception:
            failed += 1
            print(f"FAIL {name}\n{traceback.format_exc()}", flush=True)
        else:
            passed += 1
            print(f"ok   {name} ({time.monotonic() - begun:.2f} s)", flush=True)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


def main(limit_s, start, stop, module):
    """Starts the servers, runs the tests, ends the servers, also after SIGTERM, and exits."""
    watchdog(limit_s)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        start()
        status = run(module)
    finally:
        stop()
    sys.exit(status)
