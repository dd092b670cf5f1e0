import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from benchmarks.e2e.chats import ANSWER_TOKENS
from benchmarks.e2e.client import AnswerFailed, Load, run


class Engine(ThreadingHTTPServer):
    """Answers each question with "re: " before it, as a stream, and remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[list[dict[str, str]]] = []
        self.at_once = self.most_at_once = 0
        self.tokens = ANSWER_TOKENS
        self.ends = True
        self.lock = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    server: Engine

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        engine, messages = self.server, body["messages"]
        with engine.lock:
            engine.asked.append(messages)
            engine.at_once += 1
            engine.most_at_once = max(engine.most_at_once, engine.at_once)
        self.send_response(200)
        self.end_headers()
        time.sleep(0.02)
        self._event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        time.sleep(0.02)
        self._event({"choices": [{"delta": {"content": f"re: {messages[-1]['content']}"}}]})
        usage = {"prompt_tokens": 100, "completion_tokens": engine.tokens, "prompt_tokens_details": None}
        with engine.lock:
            engine.at_once -= 1
        self._event({"choices": [], "usage": usage})
        if engine.ends:
            self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, event: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def load(engine: Engine) -> Load:
    chats = [[f"chat {chat} turn {turn}" for turn in range(3)] for chat in range(4)]
    return Load(engine.server_address[1], "m", chats, at_once=2)


def test_turns_come_in_order_and_go_on_from_answers(engine: Engine) -> None:
    result = run(load(engine))
    assert [(turn.number, turn.chat) for turn in result.turns] == [(n, c) for n in range(3) for c in range(4)]
    assert engine.most_at_once == 2
    first = [messages[0]["content"] for messages in engine.asked if len(messages) == 1]
    assert sorted(first) == [f"chat {chat} turn 0" for chat in range(4)]
    last = next(one for one in engine.asked if one[-1]["content"] == "chat 2 turn 2")
    assert [message["content"] for message in last[:4]] == [
        "chat 2 turn 0",
        "re: chat 2 turn 0",
        "chat 2 turn 1",
        "re: chat 2 turn 1",
    ]


def test_the_first_event_is_the_first_token(engine: Engine) -> None:
    turns = run(load(engine)).turns
    assert all(0.02 <= turn.ttft_s <= turn.seconds for turn in turns)
    assert any(turn.ttft_s < turn.seconds - 0.015 for turn in turns)  # both may come at once


def test_an_answer_cut_short_fails(engine: Engine) -> None:
    engine.tokens = ANSWER_TOKENS - 1
    with pytest.raises(AnswerFailed, match="has 31 tokens"):
        run(load(engine))


def test_an_answer_without_its_end_fails(engine: Engine) -> None:
    engine.ends = False
    with pytest.raises(AnswerFailed, match="turn 0"):
        run(load(engine))
