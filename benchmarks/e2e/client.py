"""The client of a multi-turn load, a process of its own: a `Load` on stdin, its turns on stdout, as JSON.

The order is fixed: all first turns, then all second ones, and so on. `at_once` are under way at a time, and
the next is asked as soon as an answer is there.
"""

import itertools
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection

import msgspec

from benchmarks.e2e.chats import ANSWER_TOKENS, Chat

TIMEOUT_S = 120


class Load(msgspec.Struct):
    """Chats, and who is to answer them."""

    port: int
    model: str
    chats: list[Chat]
    at_once: int


class Turn(msgspec.Struct):
    """One answer, whole: seconds to its first event and to its end, and what usage says."""

    chat: int
    number: int
    ttft_s: float
    seconds: float
    prompt_tokens: int
    cached_tokens: int
    predicted: str
    """What our gateway expected, tier by tier; empty from others."""
    replica: str


class Result(msgspec.Struct):
    turns: list[Turn]
    seconds: float


class AnswerFailed(Exception):
    """An answer that wasn't given, or isn't whole."""


class _Conversation:
    def __init__(self, number: int, questions: Chat) -> None:
        self.number = number
        self._questions = questions
        self._messages: list[dict[str, str]] = []
        self._free = threading.Lock()

    def turn(self, load: Load, number: int) -> Turn:
        with self._free:  # the answer before is part of the prompt
            self._messages.append({"role": "user", "content": self._questions[number]})
            text, turn = _ask(load, self._messages, self.number, number)
            self._messages.append({"role": "assistant", "content": text})
            return turn


def run(load: Load) -> Result:
    """Raises AnswerFailed."""
    chats = [_Conversation(number, chat) for number, chat in enumerate(load.chats)]
    order = itertools.product(range(len(load.chats[0])), chats)
    pool = ThreadPoolExecutor(load.at_once)
    begun = time.perf_counter()
    try:
        turns = [pool.submit(chat.turn, load, number) for number, chat in order]
        return Result([turn.result() for turn in turns], time.perf_counter() - begun)
    finally:
        pool.shutdown(cancel_futures=True)


def _ask(load: Load, messages: list[dict[str, str]], chat: int, number: int) -> tuple[str, Turn]:
    body = {
        "model": load.model,
        "messages": messages,
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    connection = HTTPConnection("127.0.0.1", load.port, timeout=TIMEOUT_S)
    connection.connect()
    begun = time.perf_counter()
    headers = {"content-type": "application/json"}
    connection.request("POST", "/v1/chat/completions", msgspec.json.encode(body), headers)
    answer = connection.getresponse()
    first = answer.readline()
    ttft = time.perf_counter() - begun
    lines = [first, *answer.read().splitlines()]
    seconds = time.perf_counter() - begun
    connection.close()
    if answer.status != 200 or b"data: [DONE]" not in lines:
        raise AnswerFailed(f"turn {number} of chat {chat}: {answer.status} {lines[-3:]!r}")
    events = [msgspec.json.decode(line[6:]) for line in lines if line.startswith(b"data: {")]
    text = "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])
    usage = events[-1]["usage"]
    if usage["completion_tokens"] != ANSWER_TOKENS:
        raise AnswerFailed(f"turn {number} of chat {chat} has {usage['completion_tokens']} tokens")
    return text, Turn(
        chat=chat,
        number=number,
        ttft_s=ttft,
        seconds=seconds,
        prompt_tokens=usage["prompt_tokens"],
        cached_tokens=(usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0,
        predicted=answer.headers.get("x-hpkv-cached-tokens", ""),
        replica=answer.headers.get("x-hpkv-replica", ""),
    )


if __name__ == "__main__":
    result = run(msgspec.json.decode(sys.stdin.buffer.read(), type=Load))
    sys.stdout.buffer.write(msgspec.json.encode(result))
