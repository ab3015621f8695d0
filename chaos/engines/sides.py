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
    """A stream as the kinds of its events in order, and what their pieces add up to: an engine that is busy puts more into one, so that
    chunks of completions that bring nothing else may be missing, and are listed apart, and another one may have a piece or none."""
    shapes, pieces, text_only = [], {}, []
    for event in events:
        shape = shaped(event, (), pieces)
        if all(bare(c) for c in shape.get("choices") or [shape]) and not shape.get("usage"):
            # Of several choices, any may have such chunks.
            shape = {**shape, **{"choices": [{k: v for k, v in c.items() if k != "index"} for c in shape.get("choices") or []]}}
            if shape not in text_only:
                text_only.append(shape)
            continue
        for choice in shape.get("choices") or []:
            if choice.get("delta"):
                choice["delta"] = {k: v for k, v in choice["delta"].items() if v != "<pieces>"}
        if not shapes or shapes[-1] != shape:
            shapes.append(shape)
    return {"events": shapes, "pieces": {".".join(map(str, path)): total for path, total in pieces.items()}, "text_only": text_only}


def bare(value):
    """Whether a shape has nothing but pieces."""
    if isinstance(value, dict):
        return all(bare(v) for k, v in value.items() if k != "index")
    return value is None or value == "<pieces>"


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
