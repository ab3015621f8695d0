"""Real engines behind routers: test_engines.py ROUTER MODEL CACHE LOGS.

Starts the engines and two fleets of two routers, and uses the official openai and anthropic clients. Routers of the fleet "events" follow
the engines' cache events, those of "horizon" predict without, for comparison: tests of predictions print what they do and check nothing of
it, so ENGINES=short leaves them out. ENGINES=sglang starts SGLang instead of vLLM; tests say where it differs. Most tests make each call
twice: through a router, and directly at an engine to which the router did not send it, so that both engines see the call for the first
time and even the counts of cached tokens must agree. Prints one line a test and closes with "N passed, M failed"; the exit status is 1 if
any failed.
Tests run in the order in which they stand here: the later ones restart an engine.
"""

import asyncio
import concurrent.futures
import contextlib
import itertools
import os
import random
import sys
import threading
import time
import uuid

import anthropic
import openai

import prediction
import servers
import suite
from prediction import assistant, prose, user
from listener import Listener
from processes import wait_until
from servers import BLOCK, LONGEST, MODEL
from sides import Side, differences, outcome

HOW = os.environ.get("ENGINES") or "2"
SHORT, SGLANG = HOW == "short", HOW == "sglang"
ENGINES = 2 if SHORT or SGLANG else int(HOW)
WRONG = 0.05  # of the predictions of routers that follow events may be wrong by more than a block; see docs/lab/engines.md
EVICTIONS = 2 if SHORT else 5  # are timed
SETTLED_S = 1.5  # routers that do not follow the engine keep a placement of the last second, since the prompt may still wait in the engine

launchers, engines, direct, fleets = [], [], {}, []  # direct: a Side of each engine by its name
through = []  # a Side of each router that follows events
routed = 0


def compare(call, without=()):
    """Makes a call on both ways, requires equal outcomes, and returns that of the router. without names members that may differ."""
    global routed
    routed += 1
    side = through[routed % len(through)]
    got = outcome(call, side)
    other = next(e for e in itertools.cycle(engines) if e.name != side.backend())
    want = outcome(call, direct[other.name])
    difference = [d for d in differences(got, want) if not any(w in d.split(":")[0] for w in without)]
    assert not difference, "\n".join(difference[:20])
    return got


# Of several choices. A SGLang without deterministic inference, which needs a GPU, draws for all requests from one source in the order in which
# its batches happen to form, whatever their seed; vLLM refuses more than one choice without drawing.
SEVERAL = {"n": 2, "seed": 1, "temperature": 0 if SGLANG else 1}


# vLLM gives it in the chunk with the usage if that is asked for. The router always asks, and takes the chunk out again for a client that did not.
LOST_WITH_USAGE = ["system_fingerprint"]


def unique(words=60):
    """Text that no engine has seen. Its first words differ, so not even one block of it is cached."""
    return uuid.uuid4().hex + " " + prose(random, words)


def chat(messages=None, **more):
    """A call of the chat endpoint, deterministic unless more says otherwise."""
    messages = messages or [user(unique())]
    return lambda side: side.oai.chat.completions.create(**{"model": MODEL, "messages": messages, "max_tokens": 12, "temperature": 0, **more})


def system(text):
    return {"role": "system", "content": text}


def raised(answer, status, kind):
    assert answer.get("status") == status and answer.get("raised") == kind, answer


TOOL = {"type": "function", "function": {"name": "look_up", "description": "Looks up the weather.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}}, "required": ["city"], "additionalProperties": False}}}
SCHEMA = {"type": "object", "properties": {"answer": {"type": "string", "enum": ["yes", "no"]}}, "required": ["answer"],
          "additionalProperties": False}


# Chat


def test_models():
    want = [m.id for m in direct[engines[0].name].oai.models.list()]
    for side in through:
        assert [m.id for m in side.oai.models.list()] == want == [MODEL]


def test_chat():
    got = compare(chat())
    assert got["choices"][0]["message"]["content"] and got["usage"]["completion_tokens"] == 12, got


def test_chat_options():
    for more in [
        {"seed": 7, "temperature": 1, "top_p": 0.9},
        {"stop": ["a", "e"], "extra_body": {"ignore_eos": True}},
        {"logprobs": True, "top_logprobs": 3},
        {"max_completion_tokens": 5},
        {"presence_penalty": 0.5, "frequency_penalty": 0.5, "logit_bias": {"100": 5}},
        {"extra_body": {"min_tokens": 3, "top_k": 4, "repetition_penalty": 1.1, "return_token_ids": True}},
        {"extra_body": {"cache_salt": "pepper"}, "user": "somebody"},
        {"extra_body": {"add_generation_prompt": False, "continue_final_message": True}},
        {"metadata": {"a": "b"}, "extra_headers": {"x-session-id": "mine", "traceparent": "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"}},
    ]:
        compare(chat(**more))


def test_chat_choices():
    # The second choice may or may not find the first one's prompt in the cache.
    compare(chat(**SEVERAL), without=["prompt_tokens_details"])


def test_chat_messages():
    compare(chat([system("Sei präzise, " + unique() + " 日本語 \u2028 \U0001f347"), user("quoted \" \\ \n\t")]))
    compare(chat([user([{"type": "text", "text": unique()}, {"type": "text", "text": "and more"}])]))
    compare(chat([system(unique()), user("one"), assistant("two"), user("three")]))
    call = {"id": "call-1", "type": "function", "function": {"name": "look_up", "arguments": '{"city": "Oslo"}'}}
    compare(chat([system(unique()), user("The weather?"), {"role": "assistant", "content": None, "tool_calls": [call]},
                  {"role": "tool", "tool_call_id": "call-1", "content": "rain"}], tools=[TOOL]))


def test_chat_stream():
    for more in [{}, {"stream_options": {"include_usage": True}}, {"stream_options": {"include_usage": False}},
                 {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}, {"logprobs": True}]:
        options = more.get("stream_options") or {}
        asked = options.get("include_usage", False)
        # Continuous usage counts the tokens of each chunk, and how many have gone into one depends on the moment.
        got = compare(chat(stream=True, **more), without=["events"] if "continuous_usage_stats" in options else [] if asked else LOST_WITH_USAGE)
        assert any(e.get("usage") for e in got["events"]) == asked, got["events"]


def test_tools():
    for choice in ["auto", "none", "required", {"type": "function", "function": {"name": "look_up"}}]:
        for stream in [False, True]:
            got = compare(chat([system(unique()), user("The weather?")], tools=[TOOL], tool_choice=choice, max_tokens=100, stream=stream),
                          without=LOST_WITH_USAGE if stream else [])
            if stream or choice in ("auto", "none"):
                continue
            # SGLang lets a forced call have any arguments or, of a strict function, any white space: random weights need not end it.
            if not (SGLANG and got["choices"][0]["finish_reason"] == "length"):
                assert got["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "look_up", got


def test_json_schema():
    for form in [{"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA, "strict": True}}]:
        for stream in [False, True]:
            got = compare(chat(response_format=form, max_tokens=30, stream=stream), without=LOST_WITH_USAGE if stream else [])
    assert '"answer"' in got["pieces"]["choices.0.delta.content"], got


# Other endpoints


def test_completions():
    for more in [{}, {"echo": True, "logprobs": 2}, SEVERAL, {"stop": ["a"]}, {"stream": True},
                 {"stream": True, "stream_options": {"include_usage": True}}]:
        without = LOST_WITH_USAGE if more == {"stream": True} else []
        for prompt in [unique(), [routed + i for i in range(100, 160)]]:
            compare(completion(prompt, **more), without=without + ["prompt_tokens_details"] * ("n" in more))
        # The pieces of several choices come in any order, and the engine may begin with any of them.
        compare(completion([unique(), unique()], **more), without=without + ["prompt_tokens_details", "events"])


def completion(prompt, **more):
    return lambda side: side.oai.completions.create(**{"model": MODEL, "prompt": prompt, "max_tokens": 8, "temperature": 0, **more})


def test_responses():
    form, tool = {"type": "json_schema", "name": "a", "schema": SCHEMA}, {"type": "function", **TOOL["function"]}
    for more in [{}, {"instructions": "Be brief, " + unique()}, {"stream": True}, {"text": {"format": form}}, {"tools": [tool], "tool_choice": "auto"},
                 {"previous_response_id": "resp_none"}]:
        said = [user(unique())]
        compare(lambda side: side.oai.responses.create(**{"model": MODEL, "input": said, "max_output_tokens": 16, "temperature": 0, **more}))
    compare(lambda side: side.oai.responses.retrieve("resp_none"))
    compare(lambda side: side.oai.responses.cancel("resp_none"))


def test_messages():
    tool = {"name": "look_up", "description": "Looks up the weather.", "input_schema": TOOL["function"]["parameters"]}
    for more in [{}, {"system": "Be brief, " + unique()}, {"stop_sequences": ["a", "e"]}, {"stream": True}, {"extra_body": {"temperature": 1, "top_k": 1}},
                 {"system": unique(), "tools": [tool], "tool_choice": {"type": "auto"}},
                 {"system": unique(), "tools": [tool], "tool_choice": {"type": "any"}},
                 {"system": [{"type": "text", "text": unique(), "cache_control": {"type": "ephemeral"}}]}]:
        compare(message([user(unique())], **more))
    said = [user(unique())]
    compare(lambda side: side.ant.messages.count_tokens(model=MODEL, messages=said))


def message(said, **more):
    return lambda side: side.ant.messages.create(**{"model": MODEL, "messages": said, "max_tokens": 30, "extra_body": {"temperature": 0}, **more})


def test_paths_without_a_client():
    said = {"model": MODEL, "messages": [user(unique())]}
    for path, body in [
        ("/tokenize", {"model": MODEL, "prompt": unique()}), ("/tokenize", said), ("/detokenize", {"model": MODEL, "tokens": [100, 200, 300]}),
        ("/v1/embeddings", {"model": MODEL, "input": "text"}), ("/score", {"model": MODEL, "text_1": "a", "text_2": "b"}),
        ("/rerank", {"model": MODEL, "query": "a", "documents": ["b"]}), ("/v1/rerank", {"model": MODEL, "query": "a", "documents": ["b"]}),
        ("/v2/rerank", {"model": MODEL, "query": "a", "documents": ["b"]}), ("/pooling", {"model": MODEL, "input": "a"}),
        ("/v1/audio/speech", {"model": MODEL, "input": "a", "voice": "b"}), ("/v1/images/generations", {"model": MODEL, "prompt": "a"}),
    ]:
        compare(lambda side: side.raw("POST", path, body))
    got = compare(lambda side: side.raw("POST", "/v1/chat/completions", said | {"stream": True, "max_tokens": 4}), without=["body"])
    assert got["status"] == 200 and got["kind"] == "text/event-stream" and got["body"].endswith("data: [DONE]\n\n"), got


# Errors


def test_errors_of_the_engine():
    for got in [compare(chat(model="no-such-model")), compare(message([user("a")], model="no-such-model"))]:
        if SGLANG:  # looks at the model of Responses only
            assert got["model"] == "no-such-model", got
        else:
            raised(got, 404, "NotFoundError")
    raised(compare(chat(max_tokens=-1)), 400, "BadRequestError")
    raised(compare(chat(temperature=-3)), 400, "BadRequestError")
    raised(compare(chat(max_tokens=2 * LONGEST)), 400, "BadRequestError")
    raised(compare(chat([user(prose(random, 2 * LONGEST))])), 400, "BadRequestError")
    raised(compare(chat([user(prose(random, 2 * LONGEST))], stream=True)), 400, "BadRequestError")
    raised(compare(chat([{"content": "text"}], stream=True)), 400, "BadRequestError")
    raised(compare(chat("text")), 400, "BadRequestError")
    nonsense = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "nonsense"}}}
    raised(compare(chat(response_format=nonsense), without=[".body.message"] if SGLANG else []), 400, "BadRequestError")  # SGLang's has the time
    raised(compare(lambda s: s.oai.responses.create(model="no-such-model", input="a")), 404, "NotFoundError")
    raised(compare(lambda s: s.ant.messages.create(model=MODEL, max_tokens=-1, messages=[user("a")])), 400, "BadRequestError")


def test_errors_of_the_router():
    for side in through:
        got = side.raw("POST", "/v1/chat/completions", content=b'{"model": "tiny", "messages": [', headers={"content-type": "application/json"})
        assert got["status"] == 400 and got["body"]["error"]["message"], got
        assert side.raw("GET", "/v1/chat/completions")["status"] == 405
        for path in ["/reset_prefix_cache", "/flush_cache", "/kv_event_sources", "/metrics", "/server_info", "/v1/loads", "/v1/load_lora_adapter"]:
            assert side.raw("GET", path)["status"] == 404, path


# Leaving


# Tens of seconds of work, of which a client waits for the beginning only.
LONG = {"model": MODEL, "max_tokens": 8000, "extra_body": {"ignore_eos": True}}


def idle():
    return all(e.running() == 0 for e in engines)


def unfinished(leave):
    """Checks that no engine goes on with a LONG request after leave has returned."""
    wait_until(idle, 60, "engines idle before the test")
    before = sum(e.generated() for e in engines)
    leave()
    wait_until(idle, 30, "the engine ends the request of a client that left")
    done = sum(e.generated() for e in engines) - before
    assert done < LONG["max_tokens"], f"{done} tokens: the answer was finished for a client that had left"


def leave_stream(create):
    with create(messages=[user(unique())], stream=True, **LONG) as s:
        for _ in itertools.islice(s, 5):
            pass


async def leave_before_the_answer():
    async with openai.AsyncOpenAI(base_url=fleets[0].nodes[1].url + "/v1", api_key="none", max_retries=0, timeout=300) as c:
        waiting = asyncio.create_task(c.chat.completions.create(messages=[user(unique())], **LONG))
        await asyncio.to_thread(wait_until, lambda: not idle(), 60, "the request reaches an engine")
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()


def test_leaving_a_stream_ends_the_work():
    unfinished(lambda: leave_stream(through[0].oai.chat.completions.create))
    unfinished(lambda: leave_stream(through[1].ant.messages.create))


def test_leaving_before_the_answer_ends_the_work():
    unfinished(lambda: asyncio.run(leave_before_the_answer()))


# Caches


def test_turns_on_both_ways():
    """Each turn is made on both ways, so both engines have cached the same of the conversation and report the same."""
    for more in [{}, {"stream": True, "stream_options": {"include_usage": True}}]:
        said = [user(unique(300))]
        for turn in range(3):
            got = compare(chat(list(said), max_tokens=20, **more))
            if more:
                text, usage = got["pieces"]["choices.0.delta.content"], next(e["usage"] for e in got["events"] if e.get("usage"))
            else:
                text, usage = got["choices"][0]["message"]["content"], got["usage"]
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            assert (cached == 0) == (turn == 0), f"turn {turn}: {usage}"
            said += [assistant(text), user(f"And turn {turn}?")]


def test_messages_report_the_cache():
    said = [user(unique(300))]
    first = through[0].ant.messages.create(model=MODEL, max_tokens=8, messages=said)
    again = through[0].ant.messages.create(model=MODEL, max_tokens=8, messages=said)
    assert not first.usage.cache_read_input_tokens and again.usage.cache_read_input_tokens > 200, (first.usage, again.usage)


def test_prediction_with_ample_cache():
    prediction.header()
    for got in predictions("ample cache", 5, 4):
        assert len({q.backend for q in got}) > 1, "all conversations at one engine"
        later = [q for q in got if q.turn > 1]
        assert sum(q.cached for q in later) > 0.8 * sum(q.prompt for q in later), "later turns found less than 80 % of their prompts in the cache"


def test_prediction_with_evictions():
    # About twice what the caches hold.
    predictions("evictions", 40, 3)


def predictions(name, talks, turns):
    """The requests of each fleet, which play so many of the same conversations per engine, beginning with empty caches."""
    results = []
    for fleet in fleets:
        for e in engines:
            assert direct[e.name].raw("POST", e.CLEAR)["status"] == 200
        results.append(prediction.play(fleet, prediction.conversations(name, talks * len(engines)), turns, name))
        prediction.report(f"{name}, {fleet.name}", results[-1])
    exact_enough(results[0])
    return results


def exact_enough(requests):
    """Checks that engines had cached what routers that follow their events expected, to one block."""
    wrong = [q for q in requests if not q.within()]
    assert len(wrong) <= WRONG * len(requests), f"{len(wrong)} of {len(requests)} predictions are wrong:\n" + "\n".join(map(str, wrong[:20]))


# Loss of an engine


def test_restart_of_an_engine():
    idle_talks, busy_talks, other_talks = ([prediction.Conversation(f"{name}/{i}", None) for i in range(n)]
                                           for name, n in (("idle", 8), ("busy", 4), ("other", 12)))
    for talk in busy_talks:
        talk.streams = 0  # a stream that has begun breaks with its engine
    with_events, *without = fleets
    for fleet in without:
        prediction.play(fleet, other_talks, 1, "before")
    prediction.play(with_events, idle_talks + busy_talks, 1, "before")
    lost = max(engines, key=lambda e: min(sum(t.backend == e.name for t in talks) for talks in (idle_talks, busy_talks)))
    generations = {r: r.backends()[lost.name]["generation"] for f in fleets for r in f.nodes}
    forgotten = [t for t in idle_talks if t.backend == lost.name]
    assert forgotten, "no engine has an idle and a busy conversation"
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        playing = pool.submit(prediction.play, with_events, busy_talks, 4, "during")
        wait_until(lambda: lost.running() > 0, 60, f"{lost.name} has a request", 0.02)
        lost.kill()
        playing.result()  # raises if any request failed
    assert all(q.backend != lost.name for q in prediction.play(with_events, busy_talks, 1, "without")), f"{lost.name} is dead and answers"

    lost.start()
    wait_until(lost.ready, servers.STARTUP_S, f"{lost.name} answers again", 1)
    for r, generation in generations.items():
        wait_until(lambda: back(r.backends()[lost.name], generation), 60, f"{r.name} uses {lost.name} again and knows that its cache is new")
    with_events.follow()
    # No router believes that the engine has what it had before.
    for q in prediction.play(with_events, forgotten, 1, "after"):
        assert q.predicted == q.cached == 0, q
    got = prediction.play(with_events, idle_talks + busy_talks, 2, "later")
    prediction.report("after a restart, events", got)
    for fleet in without:
        prediction.report("after a restart, horizon", prediction.play(fleet, other_talks, 2, "later"))
    exact_enough(got)


def back(backend, generation):
    return backend["state"] == "active" and not backend["health"]["failing"] and backend["generation"] > generation


# Three routers, from here on


def test_evictions_are_known_everywhere():
    """Measures the time from an engine's event of an eviction until no router expects the prompt there; of three routers, one follows no events."""
    fleet = fleets[0]
    fleet.add(1, "--events", "off")
    fleet.follow()
    fleet.warm()  # one engine was restarted
    late = [time_to_forget(fleet) for _ in range(EVICTIONS)]
    print(f"from eviction to avoidance at {len(fleet.nodes)} routers: at most {max(late):.2f} s of {len(late)}", flush=True)


def time_to_forget(fleet):
    said, left, full = [user(unique(400))], set(), threading.Event()
    with contextlib.ExitStack() as closing, concurrent.futures.ThreadPoolExecutor(1) as pool:
        heard = {e.name: closing.enter_context(Listener(e.events)) for e in engines}
        prompt = fleet.sides[0].oai.chat.completions.create(model=MODEL, messages=said, max_tokens=1).usage.prompt_tokens
        name, settled = fleet.sides[0].backend(), time.monotonic() + SETTLED_S

        def stored(event):
            left.update(event["block_hashes"] if event["type"] == "BlockStored" else [])
            return len(left) == prompt // BLOCK

        def evicted(event):
            left.difference_update(event["block_hashes"] if event["type"] == "BlockRemoved" else [])
            return not left

        def fill():
            while not full.is_set():
                direct[name].oai.chat.completions.create(model=MODEL, messages=[user(unique(LONGEST // 3))], max_tokens=1)

        heard[name].until(stored, 30, "the engine stores the prompt")
        for node in fleet.nodes:
            wait_until(lambda: node.held(said, name) > prompt / 2, 30, f"{node.name} knows where the prompt is")
        wait_until(lambda: time.monotonic() > settled, 2 * SETTLED_S, "the placement is old enough")
        filling = pool.submit(fill)
        try:
            heard[name].until(evicted, 120, "the engine evicts the prompt")
            begun = time.monotonic()
            for node in fleet.nodes:
                wait_until(lambda: node.held(said, name) < BLOCK, 30, f"{node.name} knows of the eviction", 0.01)
            return time.monotonic() - begun
        finally:
            full.set()
            filling.result()


def stop_all():
    for e in engines:
        e.kill()  # they would take 5 s to end
    for p in [*fleets, *launchers]:
        p.stop()


def start():
    binary, model, cache, logs = sys.argv[1:]
    begun = time.monotonic()
    if SGLANG:
        engines.extend(servers.SGLang(f"engine-{i}", model, logs) for i in range(ENGINES))
    else:
        launchers.append(servers.Launcher(cache, logs))
        engines.extend(servers.VLLM(f"engine-{i}", model, launchers[0], logs) for i in range(ENGINES))
    for e in engines:
        e.start()
    for e in engines:
        wait_until(e.ready, servers.STARTUP_S, f"{e.name} answers on {e.url}", 1)
        direct[e.name] = Side(e.url)
    fleets.append(servers.Fleet("events", binary, engines, logs))
    if not SHORT:
        fleets.append(servers.Fleet("horizon", binary, engines, logs, "--events", "off"))
    for f in fleets:
        f.add(2)
    fleets[0].follow()
    through.extend(fleets[0].sides)
    print(f"{ENGINES} engines of {engines[0].version()} ready after {time.monotonic() - begun:.0f} s; openai {openai.__version__}, "
          f"anthropic {anthropic.__version__}, Python {sys.version.split()[0]}", flush=True)


if __name__ == "__main__":
    suite.main(2700 if SGLANG else 1500, start, stop_all, globals())
