"""The same call through a router and directly at an engine, and how their answers differ."""

import anthropic
import openai

# Values that differ between two equal calls. Their type is compared instead.
OF_THE_CALL = {"id", "created", "created_at", "completed_at", "item_id", "request_id", "sequence_number", "system_fingerprint"}
# What a stream gives in pieces of any size.
IN_PIECES = {"content", "text", "partial_json", "delta", "arguments", "token_ids", "tokens", "token_logprobs", "top_logprobs", "text_offset",
             "logprobs", "reasoning"}


class Side:
    """One server with a client of each kind. A client that retries would hide what a router did."""

    def __init__(self, url):
        self.headers = None  # of the last answer

        def note(response):
            self.headers = response.headers

        # Each library takes a client of the HTTP library that it was made with.
        more = {"base_url": url, "timeout": 300, "event_hooks": {"response": [note]}, "trust_env": False}
        self.http = openai.DefaultHttpxClient(**more)
        self.oai = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=300, http_client=self.http)
        self.ant = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=300, http_client=anthropic.DefaultHttpxClient(**more))

    def backend(self):
        return self.headers["x-grapevine-backend"]

    def raw(self, method, path, body=None, **more):
        """An answer as status, kind of content, and JSON or text."""
        r = self.http.request(method, path, **({"json": body} if body is not None else {}), **more)
        kind = r.headers.get("content-type", "").split(";")[0]
        return {"status": r.status_code, "kind": kind, "body": r.json() if kind == "application/json" else r.text}


def outcome(call, side):
    """What a call returns or raises, as JSON without what differs between equal calls."""
    try:
        answer = call(side)
        if isinstance(answer, (openai.Stream, anthropic.Stream)):
            with answer:
                return folded([masked(e.to_dict()) for e in answer])
        return masked(answer.to_dict() if hasattr(answer, "to_dict") else answer)
    except (openai.APIStatusError, anthropic.APIStatusError) as e:
        return masked({"raised": type(e).__name__, "status": e.status_code, "body": e.body})


def masked(value, key=None):
    if key in OF_THE_CALL:
        return f"<{type(value).__name__}>"
    if isinstance(value, dict):
        return {k: masked(v, k) for k, v in value.items()}
    if isinstance(value, list):
        return [masked(v) for v in value]
    if isinstance(value, str) and value.startswith("chatcmpl-tool-"):
        return "<tool call>"
    return value


def folded(events):
    """A stream as its events in order and what their pieces add up to. The chunks of a completion are one event, since an engine that is busy
    puts more into one; late are those that come behind the end of their choice."""
    shapes, pieces, whole, ended, late = [], {}, {}, set(), []
    for event in events:
        shape = shaped(event, (), pieces)
        if "choices" in shape:
            merge(whole, shape)
            late += [c for c in shape["choices"] if c["index"] in ended]
            ended |= {c["index"] for c in shape["choices"] if c.get("finish_reason")}
        elif not shapes or shapes[-1] != shape:
            shapes.append(shape)
    return {"events": shapes + [whole] * bool(whole), "pieces": {".".join(map(str, path)): total for path, total in pieces.items()}, "late": late}


def merge(into, value):
    """Adds a chunk to those before: a later value counts, and none does not. Elements of lists go by their index."""
    for k, v in value.items() if isinstance(value, dict) else ((v.get("index", i) if isinstance(v, dict) else i, v) for i, v in enumerate(value)):
        if isinstance(v, (dict, list)):
            if not isinstance(into.get(k), dict):
                into[k] = {}
            merge(into[k], v)
        else:
            into[k] = into.get(k) if v is None else v


def shaped(value, path, pieces):
    """value without its pieces, which are added to pieces by their path."""
    if path and path[-1] in IN_PIECES and isinstance(value, (str, list)):
        pieces[path] = pieces[path] + value if path in pieces else value
        return "<pieces>"
    if isinstance(value, dict):
        return {k: shaped(v, (*path, k), pieces) for k, v in value.items()}
    if isinstance(value, list):
        # A chunk has any of the choices, each with its index.
        return [shaped(v, (*path, v.get("index", i) if isinstance(v, dict) else i), pieces) for i, v in enumerate(value)]
    return value


def differences(a, b, path=""):
    """Lines that say where two JSON values differ."""
    if isinstance(a, dict) and isinstance(b, dict):
        return [d for k in sorted({*a, *b}) for d in differences(a.get(k, "<absent>"), b.get(k, "<absent>"), f"{path}.{k}")]
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return [d for i, (x, y) in enumerate(zip(a, b)) for d in differences(x, y, f"{path}[{i}]")]
    return [] if a == b and type(a) is type(b) else [f"{path}: {a!r} through the router, {b!r} directly"]
