"""How well routers predict what engines have cached: conversations through all routers, and the error of each request."""

import collections
import concurrent.futures
import dataclasses
import random
import threading

import servers

WORDS = ("time year people way day man thing woman life child world school state family student group country problem hand part place case week "
         "company system program question work government number night point home water room mother area money story fact month lot right study "
         "book eye job word business issue side kind head house service friend father power hour game line end member law car city").split()
AT_ONCE = 3  # requests


def prose(r, words):
    return " ".join(r.choice(WORDS) for _ in range(words))


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


@dataclasses.dataclass
class Request:
    """What one request showed, in tokens."""

    id: str
    talk: str
    turn: int
    prompt: int
    cached: int
    backend: str
    moved: bool  # away from the backend of the turn before
    predicted: int = 0
    exact: bool = False  # by the engine's events

    def within(self):
        return abs(self.predicted - self.cached) <= servers.BLOCK


class Conversation:
    """Turns over any of the routers. A quarter of them replace the turn before, as a user does who edits the last message."""

    def __init__(self, seed, system):
        self.name, self.random = seed, random.Random(seed)
        self.messages = [{"role": "system", "content": system}] if system else []
        self.turns, self.backend = 0, None
        self.streams = 0.5  # the share of its answers that are streams

    def step(self, sides):
        if self.turns > 1 and self.random.random() < 0.25:
            self.messages = self.messages[:-2]
        words = 40 if self.turns else self.random.randrange(200, 700)
        self.messages.append(user(prose(self.random, words)))
        headers, text, usage = self.ask(self.random.choice(sides), stream=self.random.random() < self.streams)
        self.messages.append(assistant(text))
        self.turns += 1
        before, self.backend = self.backend, headers["x-grapevine-backend"]
        return Request(headers["x-request-id"], self.name, self.turns, usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens,
                       self.backend, before not in (None, self.backend))

    def ask(self, side, stream):
        """Headers, text and usage of an answer."""
        more = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        raw = side.oai.chat.completions.with_raw_response.create(
            model=servers.MODEL, messages=self.messages, max_tokens=16, temperature=0, extra_body={"ignore_eos": True}, **more)
        if not stream:
            answer = raw.parse()
            return raw.headers, answer.choices[0].message.content, answer.usage
        with raw.parse() as chunks:
            chunks = list(chunks)
        return raw.headers, "".join(c.choices[0].delta.content or "" for c in chunks if c.choices), chunks[-1].usage


def conversations(seed, n):
    """Half of them begin with one of two system messages."""
    r = random.Random(seed)
    shared = [prose(r, 200) for _ in range(2)]
    return [Conversation(f"{seed}/{i}", r.choice([None, None, *shared])) for i in range(n)]


def play(fleet, talks, turns, seed):
    """Takes each conversation that many turns further, AT_ONCE at a time and in random order. Returns the requests in order."""
    r = random.Random(seed)
    waiting = collections.deque(r.sample([t for t in talks for _ in range(turns)], len(talks) * turns))
    lock, talking, requests = threading.Lock(), set(), []

    def take():
        """A turn of a conversation that has none under way; None, too, if all that are left wait for other workers."""
        with lock:
            for _ in range(len(waiting)):
                talk = waiting.popleft()
                if talk not in talking:
                    talking.add(talk)
                    return talk
                waiting.append(talk)

    def work():
        while (talk := take()) is not None:
            request = talk.step(fleet.sides)
            with lock:
                talking.discard(talk)
                requests.append(request)

    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            for f in [pool.submit(work) for _ in range(AT_ONCE)]:
                f.result()
        except BaseException:
            waiting.clear()  # or the pool would first play the rest
            raise
    logged = fleet.requests({q.id for q in requests})
    for q in requests:
        q.predicted, q.exact = logged[q.id]["predicted_tokens"], logged[q.id]["exact"]
    return requests


def header():
    print(f"{'predicted cached tokens':<28} {'requests':>8} {'hits %':>7} {'same %':>7} {'error %':>7} {'over %':>7} {'under %':>7} {'block %':>7} {'events %':>8}")


def report(name, requests):
    """Prints a line below header's columns: of all prompt tokens, how many were cached, and the error of the prediction; of the later turns,
    how many went to the backend of the turn before; of the requests, how many were predicted to within one block of the engine, and how
    many by its events."""
    prompt = sum(q.prompt for q in requests)
    later = [q for q in requests if q.turn > 1]
    over = sum(max(0, q.predicted - q.cached) for q in requests)
    under = sum(max(0, q.cached - q.predicted) for q in requests)
    shares = [(sum(q.cached for q in requests), prompt), (sum(not q.moved for q in later), len(later)), (over + under, prompt), (over, prompt),
              (under, prompt), (sum(q.within() for q in requests), len(requests)), (sum(q.exact for q in requests), len(requests))]
    print(f"{name:<28} {len(requests):>8}" + "".join(f" {100 * part / whole:>7.2f}" for part, whole in shares), flush=True)
