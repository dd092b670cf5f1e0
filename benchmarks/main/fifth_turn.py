"""Scenario: the fifth turn of a long chat, whose first four the gateway has seen.

Many conversations, each asked several times for a fifth turn with a last message that nobody has seen, at one
connection: what the gateway adds to the backend alone should be little more than encoding that message.
"""

import itertools
import json
import statistics
import time
from typing import Any, NamedTuple

from benchmarks.main.client import Connection
from benchmarks.main.encoder import encode_process
from benchmarks.main.rig import TEST_CORE, await_prefixes, running_rig, tokenizer_folder, tokenizing_gateway
from benchmarks.main.texts import message
from benchmarks.report import Report
from benchmarks.servers import Server, ServerFailed
from benchmarks.stats import median_interval

PATH = "/v1/chat/completions"
CONVERSATIONS, TURNS = 24, 5
REPEATS = 10
HISTORY_CHARS = 4800
"""Of each earlier message: four turns of two, and the last message, are about 8,000 tokens."""

Messages = list[dict[str, str]]
_numbers = itertools.count(1)


class Repeat(NamedTuple):
    """One repeat's medians, in ms."""

    through: float
    alone: float
    encode: float


def measure(report: Report) -> None:
    """Tell the gateway four turns of each conversation, then time fifth turns in blocks of all of them."""
    repeats = []
    with running_rig(tokenizing_gateway) as rig, encode_process(tokenizer_folder(), TEST_CORE) as encoder:
        await_prefixes(rig.contenders[0])
        with Connection(rig.contenders[0]) as gateway, Connection(rig.backend) as backend:
            histories = _told(gateway)
            tokens = _known_tokens(gateway, histories[0])
            _fifth_turns(gateway, histories)
            for _ in range(REPEATS):
                through, alone = _fifth_turns(gateway, histories), _fifth_turns(backend, histories)
                encoded = encoder.encode(10 * CONVERSATIONS)
                repeats.append(Repeat(through, alone, encoded.wall_us / 1e3))
        rig.tell(report, "fifth turn")
    report.note(
        f"The fifth turn has {tokens:,} tokens; its new text, {encoded.tokens:.0f} of them, is encoded alone "
        "in a tight loop, with warm caches."
    )
    _report(report, repeats)


def load(server: Server, seconds: float) -> None:
    """Fifth turns at one connection for some seconds, to profile the gateway under."""
    with Connection(server) as connection:
        histories = _told(connection)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            _fifth_turns(connection, histories)


def _told(gateway: Connection) -> list[Messages]:
    """Conversations of which this gateway has answered four turns."""
    roles = ["user", "assistant"] * (TURNS - 1)
    histories = [
        [{"role": role, "content": message(next(_numbers), HISTORY_CHARS)} for role in roles]
        for _ in range(CONVERSATIONS)
    ]
    for history, turn in itertools.product(histories, range(1, TURNS)):
        gateway.post(PATH, _body(history[: 2 * turn - 1]))
    return histories


def _body(messages: Messages) -> dict[str, Any]:
    return {"model": "mock", "messages": messages, "max_tokens": 16}


def _fifth_turn(history: Messages) -> dict[str, Any]:
    return _body([*history, {"role": "user", "content": message(next(_numbers))}])


def _known_tokens(gateway: Connection, history: Messages) -> int:
    """Tokens of a fifth turn. Raises ServerFailed unless the gateway knows that it has seen most of it."""
    route = json.loads(gateway.post("/v1/route", _fifth_turn(history)).body)
    tokens: int = route["prompt"]["tokens"]
    cached = max(candidate["cached_tokens"]["gpu"] for candidate in route["candidates"])
    if not route["prompt"]["known"] or cached < tokens / 2:
        raise ServerFailed(f"the gateway has not seen the history: {cached} of {tokens} tokens are known")
    return tokens


def _fifth_turns(connection: Connection, histories: list[Messages]) -> float:
    """The median of one fifth turn of each conversation, in ms."""
    bodies = [_fifth_turn(history) for history in histories]
    return statistics.median(connection.post(PATH, body).seconds * 1e3 for body in bodies)


def _report(report: Report, repeats: list[Repeat]) -> None:
    added = median_interval([each.through - each.alone for each in repeats])
    encode = median_interval([each.encode for each in repeats])
    alone = median_interval([each.alone for each in repeats])
    name = "fifth turn of an 8,000-token chat: added p50 over the backend alone"
    report.add(name, added.median, "ms", added.spread)
    report.add("encode of the fifth turn's new text", encode.median, "ms", encode.spread)
    report.add("fifth turn, p50 of the backend alone", alone.median, "ms", alone.spread)
