"""The official OpenAI and Anthropic clients against a running grapevine, unchanged but for the base URL.

Starts two emulated engines and the routers in front of them.
"""

import asyncio
import json
import sys
import time
import urllib.error
import urllib.request

import anthropic
import openai

import suite
from processes import Router, wait_until
from setting import GRAPEVINE, LOGS, MODEL, Engine, prose, raises, unique, user

engines = [Engine("engine-1"), Engine("engine-2")]
# The first router asks the engines for their models, and lets them judge a model that none has listed; the second has the list, and refuses
# it itself. They share the secret, so that each reads the ids of responses that the other made.
router = Router("router", GRAPEVINE, LOGS, *(f"--backend={e.url}" for e in engines))
strict = Router("strict", GRAPEVINE, LOGS, *(f"--backend={e.url},models={MODEL}" for e in engines))

ROUTER, STRICT, ENGINES = router.url, strict.url, [e.url for e in engines]

# A client that retries would hide what the router did.
oai = openai.OpenAI(base_url=ROUTER + "/v1", api_key="none", max_retries=0, timeout=30)
ant = anthropic.Anthropic(base_url=ROUTER, api_key="none", max_retries=0, timeout=30)

strict_oai = openai.OpenAI(base_url=STRICT + "/v1", api_key="none", max_retries=0, timeout=30)
strict_ant = anthropic.Anthropic(base_url=STRICT, api_key="none", max_retries=0, timeout=30)


def stats(url):
    with urllib.request.urlopen(url + "/emulator/stats", timeout=5) as r:
        return json.load(r)


def busy():
    """Requests running or waiting on all engines."""
    return sum(s["running"] + s["waiting"] for s in map(stats, ENGINES))


def aborted():
    return sum(stats(u)["aborted"] for u in ENGINES)


# OpenAI


def test_models():
    ids = [m.id for m in oai.models.list()]
    assert ids == [MODEL], f"merged over two engines with duplicates removed, want one, have {ids}"


def test_chat():
    r = oai.chat.completions.create(model=MODEL, messages=[user("Hello, " + unique())], max_tokens=12)
    assert r.choices[0].message.role == "assistant" and r.choices[0].message.content
    assert r.usage.completion_tokens == 12 and r.usage.prompt_tokens > 0
    assert r.usage.total_tokens == r.usage.prompt_tokens + r.usage.completion_tokens


def test_chat_content_parts_tools_and_unicode():
    r = oai.chat.completions.create(
        model=MODEL,
        messages=[
            {"role": "system", "content": "Sei präzise. 日本語 \u2028 \U0001f347"},
            {"role": "user", "content": [{"type": "text", "text": "first"}, {"type": "text", "text": "second \"quoted\" \\ \n"}]},
        ],
        tools=[{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}}],
        temperature=0.1, seed=7, user="somebody", max_completion_tokens=5)
    assert r.choices[0].message is not None and r.usage.completion_tokens <= 5


def chat_chunks(**kw):
    with oai.chat.completions.create(model=MODEL, messages=[user("Stream, " + unique())], max_tokens=20, stream=True, **kw) as s:
        return list(s)


def test_chat_stream():
    chunks = chat_chunks()
    text = "".join(c.choices[0].delta.content or "" for c in chunks)
    assert text and chunks[-1].choices[0].finish_reason
    for c in chunks:
        assert c.choices, "a chunk without choices, and nobody asked for usage"
        assert c.usage is None, "usage, and nobody asked for it"


def test_chat_stream_with_usage():
    chunks = chat_chunks(stream_options={"include_usage": True})
    with_usage = [c for c in chunks if c.usage is not None]
    assert len(with_usage) == 1 and with_usage[0] is chunks[-1], f"{len(with_usage)} chunks with usage of {len(chunks)}"
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 20


def test_chat_stream_usage_declined():
    assert all(c.usage is None and c.choices for c in chat_chunks(stream_options={"include_usage": False}))


def test_chat_stream_arrives_in_pieces():
    at = []
    with oai.chat.completions.create(model=MODEL, messages=[user(unique())], max_tokens=50, stream=True) as s:
        for _ in s:
            at.append(time.monotonic())
    assert at[-1] - at[0] > 0.2, f"50 tokens within {at[-1] - at[0]:.3f} s: the stream was buffered"


def test_completions():
    r = oai.completions.create(model=MODEL, prompt="Once upon a time " + unique(), max_tokens=9)
    assert r.choices[0].text and r.usage.completion_tokens == 9


def test_completions_stream():
    with oai.completions.create(model=MODEL, prompt="Once " + unique(), max_tokens=9, stream=True) as s:
        chunks = list(s)
    assert "".join(c.choices[0].text for c in chunks) and all(c.usage is None for c in chunks)


def test_embeddings():
    r = oai.embeddings.create(model=MODEL, input=["one", "two"])  # asks for base64 and decodes it
    assert len(r.data) == 2 and len(r.data[0].embedding) == len(r.data[1].embedding) > 0
    r = oai.embeddings.create(model=MODEL, input="one", encoding_format="float")
    assert isinstance(r.data[0].embedding[0], float)


def test_responses():
    r = oai.responses.create(model=MODEL, instructions="Be brief.", input="Hello " + unique(), max_output_tokens=10)
    assert r.output_text and r.usage.output_tokens == 10 and r.status in ("completed", "incomplete")


def test_responses_stream():
    with oai.responses.create(model=MODEL, input=[user("Hello " + unique())], max_output_tokens=10, stream=True) as s:
        events = list(s)
    kinds = [e.type for e in events]
    assert kinds[0] == "response.created" and kinds[-1] in ("response.completed", "response.incomplete"), kinds
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta")
    assert events[-1].response.usage.output_tokens == 10


def test_responses_go_on():
    """Turns through two routers that share the secret and the engines, half of them streamed."""
    for talk in range(6):
        first = oai.responses.create(model=MODEL, input=prose("talk" + unique()), max_output_tokens=10)
        previous, tokens = first.id, first.usage.input_tokens
        for turn in range(3):
            client = (strict_oai, oai)[turn % 2]
            r = client.responses.create(
                model=MODEL, input=f"And then, number {turn}?", previous_response_id=previous, max_output_tokens=10, stream=turn == talk % 3)
            if turn == talk % 3:
                with r as s:
                    r = list(s)[-1].response
            assert r.previous_response_id == previous
            assert r.usage.input_tokens > tokens and r.usage.input_tokens_details.cached_tokens > tokens // 2, r.usage
            previous, tokens = r.id, r.usage.input_tokens
        assert strict_oai.responses.retrieve(previous).id == previous
        e = raises(openai.BadRequestError, lambda: strict_oai.responses.cancel(previous))
        assert "synchronous" in str(e)
    e = raises(openai.NotFoundError, lambda: oai.responses.create(model=MODEL, input="x", previous_response_id="resp_0"))
    assert "not found" in str(e), e


def test_raw_headers():
    mine = "test-" + unique()
    raw = oai.chat.completions.with_raw_response.create(
        model=MODEL, messages=[user("x")], max_tokens=1, extra_headers={"x-request-id": mine})
    assert raw.headers["x-request-id"] == mine, "the request id is echoed"
    for h in ("x-grapevine-node", "x-grapevine-backend", "x-grapevine-route"):
        assert raw.headers.get(h), f"no {h}"
    assert oai.chat.completions.create(model=MODEL, messages=[user("x")], max_tokens=1)._request_id, "a request id is minted"


async def _many_streams(n):
    async with openai.AsyncOpenAI(base_url=ROUTER + "/v1", api_key="none", max_retries=0, timeout=60) as c:
        async def one(i):
            text = ""
            async for chunk in await c.chat.completions.create(
                    model=MODEL, messages=[user(f"{i} {unique()}")], max_tokens=16, stream=True):
                text += chunk.choices[0].delta.content or ""
            return text
        return await asyncio.gather(*(one(i) for i in range(n)))


def test_fifty_async_streams():
    assert all(asyncio.run(_many_streams(50)))


# Anthropic


def test_messages():
    r = ant.messages.create(model=MODEL, max_tokens=11, system="Be brief.", messages=[user("Hello " + unique())])
    assert r.type == "message" and r.role == "assistant" and r.content[0].text
    assert r.usage.output_tokens == 11 and r.usage.input_tokens > 0 and r.stop_reason in ("max_tokens", "end_turn")


def test_messages_stream():
    with ant.messages.stream(model=MODEL, max_tokens=11, messages=[user("Hello " + unique())]) as s:
        text = "".join(s.text_stream)
        final = s.get_final_message()
    assert text and final.content[0].text == text and final.usage.output_tokens == 11


def test_messages_stream_events():
    with ant.messages.create(model=MODEL, max_tokens=5, messages=[user(unique())], stream=True) as s:
        kinds = [e.type for e in s]
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop" and "content_block_delta" in kinds, kinds


def test_count_tokens():
    short = ant.messages.count_tokens(model=MODEL, messages=[user("Hello")]).input_tokens
    long = ant.messages.count_tokens(model=MODEL, system="Be brief.", messages=[user("Hello " * 400)]).input_tokens
    assert 0 < short < long, (short, long)


def test_messages_follow_up_is_cached():
    messages = [user(prose(unique()))]
    first = ant.messages.create(model=MODEL, max_tokens=8, messages=messages)
    total = first.usage.input_tokens + (first.usage.cache_read_input_tokens or 0) + (first.usage.cache_creation_input_tokens or 0)
    messages += [{"role": "assistant", "content": first.content[0].text}, user("And then?")]
    second = ant.messages.create(model=MODEL, max_tokens=8, messages=messages)
    assert second.usage.cache_read_input_tokens > 0.9 * total, second.usage


# Errors


def test_unknown_model():
    e = raises(openai.NotFoundError, lambda: strict_oai.chat.completions.create(model="no-such-model", messages=[user("x")]))
    assert e.status_code == 404 and e.code == "model_not_found" and e.type and "no-such-model" in e.body["message"], e.body
    assert set(e.body) >= {"message", "type", "param", "code"}, e.body


def test_unknown_model_streaming():
    e = raises(openai.NotFoundError, lambda: strict_oai.chat.completions.create(model="no-such-model", messages=[user("x")], stream=True))
    assert e.code == "model_not_found", e.body


def test_unknown_model_judged_by_the_engine():
    for stream in (False, True):
        e = raises(openai.NotFoundError, lambda: oai.chat.completions.create(model="no-such-model", messages=[user("x")], stream=stream))
        assert "no-such-model" in e.body["message"] and e.body["param"] == "model", e.body


def test_unknown_model_anthropic():
    for client in (strict_ant, ant):
        e = raises(anthropic.NotFoundError, lambda: client.messages.create(model="no-such-model", max_tokens=1, messages=[user("x")]))
        assert e.body["type"] == "error" and e.body["error"]["type"] == "not_found_error", e.body
        assert "no-such-model" in e.body["error"]["message"], e.body


def test_bad_request_comes_from_the_engine():
    e = raises(openai.BadRequestError, lambda: oai.chat.completions.create(model=MODEL, messages=[]))
    assert e.status_code == 400 and e.body["message"], e.body


def test_bad_request_anthropic():
    e = raises(anthropic.BadRequestError, lambda: ant.messages.create(model=MODEL, max_tokens=1, messages=[]))
    assert e.body["type"] == "error" and e.body["error"]["type"] == "invalid_request_error", e.body


def test_body_that_is_no_json():
    req = urllib.request.Request(ROUTER + "/v1/chat/completions", data=b'{"model": "' + MODEL.encode() + b'", "messages": [',
                                 headers={"content-type": "application/json"})
    try:
        urllib.request.urlopen(req, timeout=10)
    except urllib.error.HTTPError as e:
        assert e.code == 400 and "message" in json.load(e)["error"]
        return
    raise AssertionError("half a JSON object was accepted")


# Leaving


def long_chat(stream):
    return dict(model=MODEL, messages=[user("Talk for long, " + unique())], max_tokens=100_000, stream=stream)


def test_leaving_a_stream_ends_the_work():
    wait_until(lambda: busy() == 0, 10, "engines idle before the test")
    before = aborted()
    s = oai.chat.completions.create(**long_chat(True))
    for _, _chunk in zip(range(5), s):
        pass
    assert busy() == 1
    s.close()
    wait_until(lambda: busy() == 0 and aborted() == before + 1, 1, "the engine stops after its client left mid-stream")


async def _leave_before_the_answer():
    async with openai.AsyncOpenAI(base_url=ROUTER + "/v1", api_key="none", max_retries=0, timeout=60) as c:
        task = asyncio.create_task(c.chat.completions.create(**long_chat(False)))
        deadline = time.monotonic() + 10
        while await asyncio.to_thread(busy) == 0:
            assert time.monotonic() < deadline, "the request never reached an engine"
            await asyncio.sleep(0.01)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return
        raise AssertionError("not cancelled")


def test_leaving_before_the_answer_ends_the_work():
    wait_until(lambda: busy() == 0, 10, "engines idle before the test")
    before = aborted()
    asyncio.run(_leave_before_the_answer())
    wait_until(lambda: busy() == 0 and aborted() == before + 1, 1, "the engine stops after its client left before the answer")


def test_leaving_an_anthropic_stream_ends_the_work():
    wait_until(lambda: busy() == 0, 10, "engines idle before the test")
    before = aborted()
    with ant.messages.create(model=MODEL, max_tokens=100_000, messages=[user(unique())], stream=True) as s:
        for _, _event in zip(range(5), s):
            pass
    wait_until(lambda: busy() == 0 and aborted() == before + 1, 1, "the engine stops after its client left mid-stream")


# Affinity


def test_follow_ups_go_where_the_conversation_is_cached():
    # Which of two idle engines a new conversation gets is a coin that its text throws: 40 in a row on one side are a defect.
    used = set()
    for n in range(40):
        if n >= 6 and len(used) == 2:
            break
        messages = [user(prose(unique()))]
        first = oai.chat.completions.with_raw_response.create(model=MODEL, messages=messages, max_tokens=8)
        backend, reply = first.headers["x-grapevine-backend"], first.parse()
        used.add(backend)
        for turn in (2, 3):
            messages += [{"role": "assistant", "content": reply.choices[0].message.content}, user(f"And turn {turn}?")]
            before = reply.usage.prompt_tokens
            raw = oai.chat.completions.with_raw_response.create(model=MODEL, messages=messages, max_tokens=8)
            reply = raw.parse()
            assert raw.headers["x-grapevine-backend"] == backend, f"conversation {n}, turn {turn} went elsewhere"
            assert raw.headers["x-grapevine-route"].startswith("cache"), raw.headers["x-grapevine-route"]
            cached = reply.usage.prompt_tokens_details.cached_tokens
            assert cached > 0.9 * before, f"{cached} tokens cached of {before} in the turn before"
    assert len(used) == 2, f"40 conversations all went to {used}"


def test_nothing_is_left_running():
    wait_until(lambda: busy() == 0, 5, "engines idle at the end")


def start():
    for p in [*engines, router, strict]:
        p.start()
        wait_until(p.ready, 10, f"{p.name} answers")
    print(f"openai {openai.__version__}, anthropic {anthropic.__version__}, Python {sys.version.split()[0]}", flush=True)


def stop():
    for p in [*engines, router, strict]:
        p.stop()


if __name__ == "__main__":
    suite.main(240, start, stop, globals())
