"""Records what a real SGLang publishes and answers: record_sglang.py HTTP_URL EVENTS REPLAY DIRECTORY LOADS.

As record.py for vLLM, whose files it makes; LOADS is the engine's endpoint of load reports. The engine must have no other requests, a
cache of about 3,000 tokens and pages of 16. SGLang has published a few messages of its warm-up before anybody can subscribe, so the
cache is flushed first and the recording begins behind that.
"""

import sys

import zmq

import record
from record import ask, assistant, chat, compact, context, prose, replay, step, user, write

LOADS = sys.argv[5]


def stamped(stamp, messages, **more):
    return chat(messages, session_id=stamp, ignore_eos=True, **more)


def pages(seed, page=16):
    """A chat whose prompt fills its last page."""
    for words in range(80, 200):
        talk = [user(prose(seed, words))]
        if ask("/v1/tokenize", {"model": record.MODEL, "messages": talk})[1]["body"]["count"] % page == 0:
            return talk
    raise SystemExit(f"no prompt of 80 to 200 words has a multiple of {page} tokens: choose another seed")


def main():
    record.WHERE.mkdir(parents=True, exist_ok=True)
    loads = context.socket(zmq.SUB)
    loads.setsockopt(zmq.SUBSCRIBE, b"")
    loads.connect(LOADS)
    record.subscribe()
    ask("/flush_cache", method="POST")
    while record.events.poll(record.SILENCE):
        record.expected = record.message(record.events.recv_multipart())["sequence"] + 1
    asked, answer = ask("/server_info")
    # Of hundreds of settings, those that say what it publishes.
    answer["body"] = {k: v for k, v in answer["body"].items() if k in ("version", "kv_events", "kv_events_config", "load_publish_endpoint", "page_size",
                                                                       "max_total_num_tokens", "enable_session_radix_cache", "disaggregation_mode", "dp_size")}
    write("server_info.json", compact({"requests": [{"request": asked, "answer": answer}]}))
    for name, path in [("models", "/v1/models"), ("model_info", "/model_info"), ("loads", "/v1/loads?include=core")]:
        asked, answer = ask(path)
        write(f"{name}.json", compact({"requests": [{"request": asked, "answer": answer}]}))
    talk = [user(prose(1, 250))]
    first = step("new-chat", stamped("stamp-A", talk), what="A new chat with a session_id.")
    step("exact-resend", stamped("stamp-B", talk), what="The same again.")
    talk += [assistant(first), user(prose(2, 80))]
    step("next-turn", stamped("stamp-C", talk), what="The next turn of that chat.")
    step("branch", stamped("stamp-D", talk[:2] + [user(prose(3, 80))]), what="Another second turn of the same chat.")
    step("long-output", stamped("stamp-E", [user(prose(4, 40))], max_tokens=100), what="100 output tokens.")
    step("long-output-resend", stamped("stamp-F", [user(prose(4, 40))], max_tokens=100), what="The same again.")
    step("header-session", chat([user(prose(5, 40))], {"X-Session-ID": "header"}), what="A session in the header only.")
    step("no-session", chat([user(prose(6, 40))]), what="A chat without a session.")
    step("cache-salt", stamped("stamp-G", [user(prose(6, 40))], cache_salt="pepper"), what="The same with a cache_salt.")
    step("at-once", *[stamped(f"stamp-H{i}", [user(prose(7, 80))]) for i in range(3)], what="Three equal chats at the same time.")
    whole = pages(8)
    for i in range(2):
        step("full-pages", stamped(f"stamp-V{i}", whole), what="A prompt of whole pages, twice.")
    step("short", stamped("stamp-I", [user("Hi")]), what="A prompt of less than a page or two.")
    step("two-choices", stamped("stamp-J", [user(prose(15, 80))], n=2, temperature=1), what="n = 2.")
    step("stream", stamped("stamp-K", [user(prose(9, 80))], stream=True, stream_options={"include_usage": True}), what="A stream with usage.")
    step("input-ids", chat([user("Hi")], {"x-sglext-return-input-ids": "1"}), what="A chat whose prompt's tokens are returned.")
    step("completion", ("/v1/completions", {"model": record.MODEL, "prompt": prose(10, 80), "max_tokens": 4, "temperature": 0, "session_id": "stamp-M"}),
         what="A completion.")
    step("completion-batch", ("/v1/completions", {"model": record.MODEL, "prompt": [prose(11, 40), prose(12, 40)], "max_tokens": 4, "temperature": 0,
                                                  "session_id": "stamp-N"}), what="A completion of two prompts.")
    step("generate", ("/generate", {"text": prose(16, 80), "sampling_params": {"max_new_tokens": 4, "temperature": 0}, "session_id": "stamp-O"}),
         what="SGLang's own endpoint.")
    step("responses", ("/v1/responses", {"model": record.MODEL, "input": prose(13, 80), "max_output_tokens": 4, "temperature": 0, "session_id": "stamp-P"}),
         what="The Responses API.")
    step("messages", ("/v1/messages", {"model": record.MODEL, "messages": [user(prose(14, 80))], "max_tokens": 4, "temperature": 0,
                                       "session_id": "stamp-Q"}), what="Anthropic's Messages API.")
    step("error", stamped("stamp-R", [user("Hi")], top_p=7), what="A request that the engine refuses.")
    for i in range(4):
        step("eviction", stamped(f"stamp-S{i}", [user(prose(20 + i, 800))]), what="A prompt of a quarter of the cache: the last ones evict.")
    step("evicted", stamped("stamp-T", talk), what="The chat of the first steps again.")
    step("flush", ("/flush_cache", None, None, "POST"), what="The cache is cleared.")
    step("after-flush", stamped("stamp-U", talk), what="The chat of the first steps again.")
    replay("replay", 2, "All messages from the sequence 2 on.")
    replay("replay-future", 1_000_000, "Messages from a sequence that has not come.")
    got = []
    while loads.poll(0):
        got.append(record.message(loads.recv_multipart()))
    write("load-reports.json", compact({"what": "The first, the last and some other load reports since the subscription.", "count": len(got),
                                        "messages": got[:3] + got[3:-2:max(1, len(got) // 12)] + got[-2:]}))


if __name__ == "__main__":
    main()
