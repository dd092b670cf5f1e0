"""Scenario: the second turn of a chat, on real engines.

Chats alternate between a gateway before two replicas and one before a single one of these. The second turn
has the first's prompt and answer, so the replica that holds them has next to nothing to prefill.
"""

import itertools
import json
import time
from http.client import HTTPConnection
from typing import NamedTuple

from benchmarks.engines import MODEL, running_replicas
from benchmarks.main.rig import await_prefixes, serve
from benchmarks.main.texts import message
from benchmarks.report import Report
from benchmarks.servers import Server, ServerFailed
from benchmarks.stats import median_interval
from engine_adapters.replica import LocalReplica

CHATS = {"vllm": (10, 2), "sglang": (6, 1)}
"""Chats that count and that warm up; SGLang takes longer over each on a CPU."""

FIRST_CHARS = 15_100
"""About 3,000 tokens."""
SECOND_CHARS = 160
ANSWER_TOKENS = 16

Messages = list[dict[str, str]]
_numbers = itertools.count(1)


class Turn(NamedTuple):
    """One answer: seconds to its first event, its text, who gave it, and what its prompt was."""

    ttft_s: float
    text: str
    replica: str
    prompt_tokens: int
    cached_tokens: int


class Chat(NamedTuple):
    """Both turns of one chat."""

    first: Turn
    second: Turn


def measure(report: Report, engine: str = "vllm") -> None:
    """Alternating chats through both gateways; the first ones warm up and do not count."""
    with (
        running_replicas(2, engine) as replicas,
        _gateway("two", engine, replicas) as two,
        _gateway("single", engine, replicas[:1]) as single,
    ):
        for gateway in (two, single):
            await_prefixes(gateway)
        counted, warm = CHATS[engine]
        pairs = [(_chat(two), _chat(single)) for _ in range(counted + warm)][warm:]
    _report(report, [on_two for on_two, _ in pairs], [alone for _, alone in pairs])


def _gateway(name: str, engine: str, replicas: list[LocalReplica]) -> Server:
    upstreams = [
        {"name": r.name, "url": r.url, "engine": engine, "events": r.events, "replay": r.replay}
        for r in replicas
    ]
    return serve(f"{name}-replica", upstreams, None)


def _chat(gateway: Server) -> Chat:
    messages = [{"role": "user", "content": message(next(_numbers), FIRST_CHARS)}]
    first = _ask(gateway, messages)
    messages.append({"role": "assistant", "content": first.text})
    messages.append({"role": "user", "content": message(next(_numbers), SECOND_CHARS)})
    return Chat(first, _ask(gateway, messages))


def _ask(gateway: Server, messages: Messages) -> Turn:
    body = {
        "model": MODEL,
        "messages": messages,
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    content = json.dumps(body).encode()
    connection = HTTPConnection("127.0.0.1", gateway.port, timeout=120)
    connection.connect()
    start = time.perf_counter()
    connection.request("POST", "/v1/chat/completions", content, {"content-type": "application/json"})
    answer = connection.getresponse()
    first = answer.readline()
    ttft = time.perf_counter() - start
    lines = [first, *answer.read().splitlines()]
    connection.close()
    if answer.status != 200:
        raise ServerFailed(f"{gateway.name}: {answer.status} {b''.join(lines)[:300]!r}")
    events = [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]
    text = "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])
    usage = events[-1]["usage"]
    cached = (usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0
    return Turn(ttft, text, answer.headers["x-hpkv-replica"], usage["prompt_tokens"], cached)


def _report(report: Report, two: list[Chat], single: list[Chat]) -> None:
    for chats, where in ((two, "on two real replicas"), (single, "on a single replica")):
        ratio = median_interval([chat.second.ttft_s / chat.first.ttft_s for chat in chats])
        name = f"second turn of a 3,000-token chat {where}, TTFT / first turn's"
        report.add(name, ratio.median, "", ratio.spread)
        for turn in ("first", "second"):
            ttft = median_interval([getattr(chat, turn).ttft_s * 1e3 for chat in chats])
            report.add(f"TTFT of the {turn} turn {where}", ttft.median, "ms", ttft.spread)
    stayed = sum(chat.first.replica == chat.second.replica for chat in two)
    homes = sorted({chat.first.replica for chat in two})
    last = two[-1]
    report.note(
        f"second turn: first turns have {last.first.prompt_tokens:,} tokens; of the second's "
        f"{last.second.prompt_tokens:,}, {last.second.cached_tokens:,} were cached. Of {len(two)} chats on "
        f"replicas {' and '.join(homes)}, {stayed} went back to where they had been. The client and the "
        "gateway share the replicas' cores."
    )
