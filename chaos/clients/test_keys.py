"""What the official clients make of a router that asks for keys: their error classes for 401, 403 and 429, their retries, and the limits that they read.

Starts an emulated engine and a router with a clients file.
"""

import contextlib
import json
import os
import subprocess
import sys
import time

import anthropic
import openai

import suite
from processes import Router, get, wait_until
from setting import GRAPEVINE, LOGS, MODEL, Engine, prose, raises, unique, user

CLIENTS, ACCESS = f"{LOGS}/clients.yaml", f"{LOGS}/access.jsonl"
TOKENS = 12_000  # per minute, of the client "tokens"

engine = Engine("engine")
router = Router("router", GRAPEVINE, LOGS, f"--backend={engine.url}", f"--clients-file={CLIENTS}", f"--access-log-file={ACCESS}", "--access-log=all",
                "--log-level=debug")
keys = {}  # of each client
answers = []  # texts that clients or operators were given

# What each dialect calls the errors, and the client's key.
DIALECTS = {
    "openai": (openai, lambda e: e.body["code"]),
    "anthropic": (anthropic, lambda e: e.body["error"]["type"]),
}


def new_client(name, limits=""):
    made = json.loads(subprocess.run([GRAPEVINE, "clients", "new", name, "--json"], check=True, capture_output=True).stdout)
    keys[name] = made["key"]
    return f"  - {{name: {name}, key_sha256: {made['key_sha256']}{limits}}}\n"


def ask(dialect, key, text="hello", retries=0, **more):
    """A short request, and the headers of its answer."""
    more = {"model": MODEL, "messages": [user(text)], "max_tokens": 4, **more}
    if dialect == "openai":
        client = openai.OpenAI(base_url=router.url + "/v1", api_key=key, max_retries=retries, timeout=30)
        raw = client.chat.completions.with_raw_response.create(**more)
    else:
        client = anthropic.Anthropic(base_url=router.url, api_key=key, max_retries=retries, timeout=30)
        raw = client.messages.with_raw_response.create(**more)
    answers.append(f"{raw.text if isinstance(raw.text, str) else raw.text()} {dict(raw.headers)}")
    await_line(raw.headers)
    return raw.headers


def refused(kind, dialect, key, **more):
    """The error that a request raises, one of the client's own class."""
    e = raises(getattr(DIALECTS[dialect][0], kind), lambda: ask(dialect, key, **more))
    answers.append(f"{e} {e.body} {dict(e.response.headers)}")
    await_line(e.response.headers)
    return e


def access_lines():
    """What the router logged so far, of requests that have ended."""
    if not os.path.exists(ACCESS):
        return []
    with open(ACCESS) as f:
        return [json.loads(line) for line in f if line.endswith("\n")]


def await_line(headers):
    """Waits until the access log has the request that was answered with these headers. The router writes the line after the answer, and on a
    busy machine after the next request has begun: whoever counts lines would take it for a line of that one."""
    wait_until(lambda: any(line["id"] == headers["x-request-id"] for line in access_lines()), 30, "the access log has the request")


@contextlib.contextmanager
def attempts(*want):
    """Requires that the router answered exactly these statuses meanwhile. Earlier requests are in the access log."""
    before = len(access_lines())
    yield
    wait_until(lambda: len(access_lines()) >= before + len(want), 30, "the access log has every request")
    got = [line["status"] for line in access_lines()[before:]]
    assert got == list(want), f"the router saw {got}, want {list(want)}"


@contextlib.contextmanager
def occupied():
    """Keeps the only request that the client "single" may have in flight."""
    client = openai.OpenAI(base_url=router.url + "/v1", api_key=keys["single"], max_retries=0, timeout=60)
    stream = client.chat.completions.create(model=MODEL, messages=[user(unique())], max_tokens=100_000, stream=True)
    next(iter(stream))
    try:
        yield stream
    finally:
        stream.close()
        await_line(stream.response.headers)
        wait_until(lambda: usage("single")["requests"] == 0, 30, "the stream has ended")


def usage(name):
    return next(c for c in json.loads(get(router.admin + "/clients")[1])["clients"] if c["name"] == name)


def test_unknown_keys():
    for dialect, (_, code) in DIALECTS.items():
        with attempts(401):  # the documented two retries are for other errors
            e = refused("AuthenticationError", dialect, "gv-nobody", retries=2)
        assert e.status_code == 401 and code(e) in ("invalid_api_key", "authentication_error"), e.body
        assert e.response.headers["www-authenticate"] == "Bearer" and e.response.headers["x-request-id"]


def test_missing_key():
    client = openai.OpenAI(base_url=router.url + "/v1", api_key="unused", max_retries=0)
    e = raises(openai.AuthenticationError, lambda: client.models.list(extra_headers={"Authorization": openai.Omit()}))
    await_line(e.response.headers)
    assert "Authorization: Bearer KEY" in e.body["message"], e.body


def test_models_and_paths_of_others():
    for dialect, (_, code) in DIALECTS.items():
        for more in [{"model": "another"}, {"model": "another", "stream": True}]:
            with attempts(403):
                e = refused("PermissionDeniedError", dialect, keys["narrow"], retries=2, **more)
            assert e.status_code == 403 and code(e) in ("model_not_allowed", "permission_error"), e.body
    with attempts(200, 403):
        ask("openai", keys["chat"])
        e = refused("PermissionDeniedError", "anthropic", keys["chat"], retries=2)
    assert "path" in e.body["error"]["message"], e.body


def test_anthropics_client_with_a_token():
    """It sends Authorization: Bearer then, in place of x-api-key."""
    client = anthropic.Anthropic(base_url=router.url, auth_token=keys["open"], max_retries=0)
    await_line(client.messages.with_raw_response.create(model=MODEL, max_tokens=1, messages=[user("x")]).headers)


def test_limits_are_read():
    for dialect in DIALECTS:
        got = ask(dialect, keys["tokens"], prose(unique(), 100))
        assert int(got["x-ratelimit-limit-tokens"]) == TOKENS and 0 < int(got["x-ratelimit-remaining-tokens"]) < TOKENS, got
        assert got["x-ratelimit-reset-tokens"].endswith("s"), got
        got = ask(dialect, keys["single"])
        assert got["x-ratelimit-limit-requests"] == "1" and got["x-ratelimit-remaining-requests"] in ("0", "1"), got
        assert "x-ratelimit-limit-tokens" not in got and not any(h.startswith("x-ratelimit") for h in ask(dialect, keys["open"]))


def test_too_many_requests():
    with occupied():
        for dialect, (_, code) in DIALECTS.items():
            for stream in (False, True):
                e = refused("RateLimitError", dialect, keys["single"], stream=stream)
                assert e.status_code == 429 and code(e) in ("rate_limit_exceeded", "rate_limit_error"), e.body
                h = e.response.headers
                assert h["retry-after"] == "1" and h["x-ratelimit-remaining-requests"] == "0", h


def test_too_many_requests_are_tried_three_times():
    for dialect in DIALECTS:
        with occupied():
            begun = time.monotonic()
            with attempts(429, 429, 429):
                e = refused("RateLimitError", dialect, keys["single"], retries=2)
            waited, told = time.monotonic() - begun, float(e.response.headers["retry-after-ms"]) / 1000
            assert waited >= 2 * told, f"{dialect}: two retries within {waited:.2f} s, and each answer said {told} s"


def test_a_retry_succeeds_when_the_limit_allows():
    for dialect in DIALECTS:
        with contextlib.ExitStack() as held:
            stream = held.enter_context(occupied())
            lines = len(access_lines())

            def close_when_refused():
                wait_until(lambda: len(access_lines()) > lines, 30, "the first try was refused")
                stream.close()

            begun = time.monotonic()
            with attempts(429, 200, 200):  # the first 200 is the stream, which is logged when it ends
                # The wait is a second; the stream ends within it.
                closing = suite.later(0, close_when_refused)
                ask(dialect, keys["single"], retries=2)
                closing.join()
            assert time.monotonic() - begun >= 1, "the client did not wait"


def test_too_many_tokens():
    """Who waits as the answer says is admitted at once."""
    for dialect, (_, code) in DIALECTS.items():
        name = "tokens-" + dialect
        ask(dialect, keys[name], prose(unique(), 1_000))
        used = usage(name)["tokens_used"]
        assert TOKENS / 2 < used <= TOKENS, used
        text = (unique() + " ") * (4 * (TOKENS - used + 1_200) // 33)  # tokens of four bytes; 1,200 leak in 6 s
        e = refused("RateLimitError", dialect, keys[name], text=text)
        h = e.response.headers
        assert code(e) in ("rate_limit_exceeded", "rate_limit_error") and int(h["x-ratelimit-remaining-tokens"]) < TOKENS, (e.body, h)
        wait = float(h["retry-after-ms"]) / 1000
        assert 0 < wait <= int(h["retry-after"]) <= wait + 1, h
        with attempts(429, 200):
            ask(dialect, keys[name], text, retries=2)


def test_no_key_appears_anywhere():
    """Logs at their most talkative, the access log, what the operator asks for, and what clients were answered."""
    body = json.dumps({"model": MODEL, "messages": [user("hello")]})
    for name, key in keys.items():
        answers.append(subprocess.run([GRAPEVINE, "explain", "--admin", router.admin, "--json", "-H", f"Authorization: Bearer {key}"],
                                      input=body, capture_output=True, text=True, check=True).stdout)
    told = {path: get(router.admin + path)[1] for path in ["/status", "/clients", "/backends", "/metrics", "/nodes"]}
    told |= {"router's log": router.text(), "engine's log": engine.text(), "answers": "\n".join(answers)}
    with open(ACCESS) as f:
        told["access log"] = f.read()
    assert all(told.values()), {name: len(text) for name, text in told.items()}
    assert '"client":"single"' in told["access log"] and len(access_lines()) > 20
    for name, key in keys.items():
        for where, text in told.items():
            assert key not in text and key.removeprefix("gv-") not in text, f"{where} has the key of {name}"


def start():
    with open(CLIENTS, "w") as f:
        f.write("anonymous: refuse\nclients:\n" + new_client("open") + new_client("narrow", f", models: [{MODEL}]")
                + new_client("chat", ", paths: [/v1/chat/completions]") + new_client("single", ", in_flight: 1")
                + "".join(new_client(name, f", tokens_per_minute: {TOKENS}") for name in ["tokens", "tokens-openai", "tokens-anthropic"]))
    for p in [engine, router]:
        p.start()
        wait_until(p.ready, 10, f"{p.name} answers")


def stop():
    router.stop()
    engine.stop()


if __name__ == "__main__":
    suite.main(120, start, stop, globals())
