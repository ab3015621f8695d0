"""Records what a real vLLM publishes and answers: record.py HTTP_URL EVENTS REPLAY DIRECTORY.

EVENTS and REPLAY are the engine's two event endpoints (tcp://127.0.0.1:PORT). Every step sends one request, or a few at once, and
writes NN-name.json: the requests and answers, and the messages that arrived on the event stream until it was silent for a while.
Runs with the Python of the engine, which has zmq and msgspec. The engine must have just started, so that the first message recorded
is its first, with a cache of about 100 blocks of 32 tokens, so that the steps "eviction" evict.
"""

import base64
import concurrent.futures
import json
import pathlib
import random
import sys
import urllib.error
import urllib.request

import msgspec
import zmq

URL, EVENTS, REPLAY = sys.argv[1:4]
WHERE = pathlib.Path(sys.argv[4])
MODEL = "tiny"
BLOCK = 32
SILENCE = 700  # ms without a message after which a step's messages are complete; the engine publishes within a few ms
WORDS = "the of to and a in is it you that he was for on are with as his they be at one have this from or had by hot word".split()

context = zmq.Context()
events = context.socket(zmq.SUB)
events.setsockopt(zmq.SUBSCRIBE, b"")
written = 0
expected = 0  # the sequence of the next message


def prose(seed, words):
    r = random.Random(seed)
    return " ".join(r.choice(WORDS) for _ in range(words))


def user(text):
    return {"role": "user", "content": text}


def assistant(answer):
    return {"role": "assistant", "content": answer["body"]["choices"][0]["message"]["content"]}


def decode(payload):
    return msgspec.msgpack.decode(payload)


def message(frames):
    """A message as its frames, in base64, and what its payload means according to msgspec, the library the engine encodes with."""
    topic, sequence, payload = frames[-3:]
    return {
        "frames": [base64.b64encode(f).decode() for f in frames],
        "topic": topic.decode(),
        "sequence": int.from_bytes(sequence, "big", signed=True),
        "decoded": decode(payload) if payload else None,
    }


def subscribe():
    """Returns when the engine has taken the subscription, before which it publishes to nobody."""
    monitor = events.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
    events.connect(EVENTS)
    if not monitor.poll(10_000):
        raise SystemExit(f"no ZeroMQ publisher answers on {EVENTS}")
    events.disable_monitor()


def published():
    global expected
    got = []
    while events.poll(SILENCE):
        got.append(message(events.recv_multipart()))
        if got[-1]["sequence"] != expected:
            raise SystemExit(f"message {got[-1]['sequence']} came in place of {expected}: start the engine anew and record again")
        expected += 1
    return got


def ask(path, body=None, headers=None, method=None):
    """One request and its answer. A stream is given as its text."""
    data = None if body is None else json.dumps(body).encode()
    req = urllib.request.Request(URL + path, data=data, method=method, headers={"content-type": "application/json", **(headers or {})})
    try:
        with urllib.request.urlopen(req, timeout=300) as r:
            status, kind, text = r.status, r.headers.get_content_type(), r.read().decode()
    except urllib.error.HTTPError as e:
        status, kind, text = e.code, e.headers.get_content_type(), e.read().decode()
    asked = {"path": path}
    if method:
        asked["method"] = method
    if headers:
        asked["headers"] = headers
    if body is not None:
        asked["body"] = body
    return asked, {"status": status, "body": json.loads(text) if kind == "application/json" and text else text}


def write(name, text):
    (WHERE / name).write_text(text)


def step(name, *requests, what):
    """Sends the requests together, writes them with their answers and messages, and returns the last answer."""
    global written
    with concurrent.futures.ThreadPoolExecutor(len(requests)) as pool:
        done = [f.result() for f in [pool.submit(ask, *r) for r in requests]]
    got = published()
    written += 1
    record = {"what": what, "requests": [{"request": q, "answer": a} for q, a in done], "messages": got}
    # One line for each list of numbers keeps the files readable and small.
    write(f"{written:02d}-{name}.json", compact(record))
    kinds = [e["type"] for m in got for e in m["decoded"][1]]
    print(f"{name}: {[a['status'] for _, a in done]}, {len(got)} messages, {len(kinds)} events {sorted(set(kinds))}")
    return done[-1][1]


def compact(value, indent=""):
    """JSON with a line for each member, but short values and lists of numbers on one line."""
    flat = json.dumps(value, ensure_ascii=False)
    if len(flat) <= 120 or not isinstance(value, (dict, list)) or isinstance(value, list) and not any(isinstance(v, (dict, list)) for v in value):
        return flat + ("" if indent else "\n")
    deeper = indent + " "
    if isinstance(value, dict):
        lines = [f"{deeper}{json.dumps(k)}: {compact(v, deeper)}" for k, v in value.items()]
        ends = "{}"
    else:
        lines = [deeper + compact(v, deeper) for v in value]
        ends = "[]"
    return ends[0] + "\n" + ",\n".join(lines) + "\n" + indent + ends[1] + ("" if indent else "\n")


def chat(messages, headers=None, **more):
    return "/v1/chat/completions", {"model": MODEL, "messages": messages, "max_tokens": 4, "temperature": 0, **more}, headers


def full_blocks(seed):
    """A chat whose prompt fills its last block."""
    for words in range(80, 200):
        talk = [user(prose(seed, words))]
        if ask("/tokenize", {"model": MODEL, "messages": talk})[1]["body"]["count"] % BLOCK == 0:
            return talk
    raise SystemExit(f"no prompt of 80 to 200 words has a multiple of {BLOCK} tokens: choose another seed")


def main():
    WHERE.mkdir(parents=True, exist_ok=True)
    subscribe()
    for name, path in [("version", "/version"), ("models", "/v1/models"), ("kv_event_sources", "/kv_event_sources"), ("load", "/load")]:
        asked, answer = ask(path)
        write(f"{name}.json", compact({"requests": [{"request": asked, "answer": answer}]}))
    talk = [user(prose(1, 250))]
    first = step("new-chat", chat(talk, {"X-Session-ID": "stamp-A"}), what="A new chat with the header X-Session-ID.")
    step("exact-resend", chat(talk, {"X-Session-ID": "stamp-B"}), what="The same again.")
    talk += [assistant(first), user(prose(2, 80))]
    step("next-turn", chat(talk, {"X-Session-ID": "stamp-C"}), what="The next turn of that chat: the parent of the first block is the last one cached.")
    step("next-turn-resend", chat(talk, {"X-Session-ID": "stamp-D"}), what="The same again.")
    step("branch", chat(talk[:2] + [user(prose(3, 80))], {"X-Session-ID": "stamp-E"}), what="Another second turn of the same chat.")
    step("long-output", chat([user(prose(4, 40))], {"X-Session-ID": "stamp-F"}, max_tokens=100, ignore_eos=True),
         what="100 output tokens: blocks of the output are stored as they fill.")
    step("body-session", chat([user(prose(5, 40))], {"X-Session-ID": "header"}, session_id="body"),
         what="A session_id in the body and another in the header.")
    step("no-session", chat([user(prose(6, 40))]), what="A chat without a session.")
    step("cache-salt", chat([user(prose(6, 40))], {"X-Session-ID": "stamp-G"}, cache_salt="pepper"), what="The same with a cache_salt.")
    step("at-once", *[chat([user(prose(7, 80))], {"X-Session-ID": f"stamp-H{i}"}) for i in range(3)],
         what="Three equal chats at the same time: a block may be stored more than once.")
    whole = full_blocks(8)
    for i in range(2):
        step("full-blocks", chat(whole, {"X-Session-ID": f"stamp-V{i}"}),
             what="A prompt of whole blocks, twice: the engine computes the last one again, because it needs one token, and so stores it again.")
    step("short", chat([user("Hi")], {"X-Session-ID": "stamp-I"}), what="A prompt of less than one block.")
    step("two-choices", chat([user(prose(15, 80))], {"X-Session-ID": "stamp-J"}, n=2, temperature=1, seed=1), what="n = 2.")
    step("stream", chat([user(prose(9, 80))], {"X-Session-ID": "stamp-K"}, stream=True, stream_options={"include_usage": True}),
         what="A stream with usage.")
    step("full-report", chat(talk, {"X-Session-ID": "stamp-L"}, vllm_xargs={"kv_cache_report_mode": "full"}),
         what="kv_cache_report_mode full: blocks that were cached are stored in the report again.")
    step("completion", ("/v1/completions", {"model": MODEL, "prompt": prose(10, 80), "max_tokens": 4, "temperature": 0}, {"X-Session-ID": "stamp-M"}),
         what="A completion.")
    step("completion-batch", ("/v1/completions", {"model": MODEL, "prompt": [prose(11, 40), prose(12, 40)], "max_tokens": 4, "temperature": 0},
                              {"X-Session-ID": "stamp-N"}), what="A completion of two prompts.")
    step("responses", ("/v1/responses", {"model": MODEL, "input": prose(13, 80), "max_output_tokens": 4, "temperature": 0}, {"X-Session-ID": "stamp-O"}),
         what="The Responses API.")
    step("messages", ("/v1/messages", {"model": MODEL, "messages": [user(prose(14, 80))], "max_tokens": 4, "temperature": 0}, {"X-Session-ID": "stamp-P"}),
         what="Anthropic's Messages API.")
    step("messages-resend", ("/v1/messages", {"model": MODEL, "messages": [user(prose(14, 80))], "max_tokens": 4, "temperature": 0}, {"X-Session-ID": "stamp-Q"}),
         what="The same again.")
    step("error", chat([user("Hi")], {"X-Session-ID": "stamp-R"}, max_tokens=-1), what="A request that the engine refuses.")
    for i in range(4):
        step("eviction", chat([user(prose(20 + i, 800))], {"X-Session-ID": f"stamp-S{i}"}), what="A prompt of a quarter of the cache: the last ones evict.")
    step("evicted", chat(talk, {"X-Session-ID": "stamp-T"}), what="The chat of the first steps again.")
    step("reset", ("/reset_prefix_cache", None, None, "POST"), what="The prefix cache is cleared.")
    step("after-reset", chat(talk, {"X-Session-ID": "stamp-U"}), what="The chat of the first steps again.")

    replay("replay", 2, "All messages from the sequence 2 on.")
    replay("replay-future", 1_000_000, "Messages from a sequence that has not come.")
    # Without histograms' buckets and the metrics of Python and of the HTTP server, which are two thirds of the page.
    page = [line for line in ask("/metrics")[1]["body"].splitlines() if "vllm:" in line and "_bucket{" not in line]
    write("metrics.txt", "\n".join(page) + "\n")


def replay(name, start, what):
    """Asks for past messages as a DEALER, so that the empty frame before each is visible; keeps the first two and the last."""
    global written
    socket = context.socket(zmq.DEALER)
    socket.connect(REPLAY)
    request = [b"", start.to_bytes(8, "big")]
    socket.send_multipart(request)
    got = []
    while socket.poll(5000):
        got.append(message(socket.recv_multipart()))
        if got[-1]["sequence"] == -1:
            break
    socket.close()
    written += 1
    kept = got[:2] + got[-1:] if len(got) > 3 else got
    write(f"{written:02d}-{name}.json", compact({
        "what": what, "request_frames": [base64.b64encode(f).decode() for f in request],
        "count": len(got), "sequences": [m["sequence"] for m in got], "messages": kept}))
    print(f"{name}: {len(got)} messages")


if __name__ == "__main__":
    main()
