import logging

import orjson
import pytest

from gateway.settings import LogSettings
from gateway.telemetry.logs import JsonFormatter, TextFormatter
from tests.fakes.engine import FakeEngine
from tests.gateway.conftest import Serve


def record(**extra: object) -> logging.LogRecord:
    made = logging.LogRecord("hpkv.test", logging.INFO, __file__, 1, "done %d", (3,), None)
    made.__dict__.update(extra)
    return made


def test_a_record_is_one_json_object() -> None:
    fields = orjson.loads(JsonFormatter().format(record(replica="a", seconds=1.5)))
    assert fields.pop("time") > 0
    assert fields == {
        "level": "info",
        "logger": "hpkv.test",
        "message": "done 3",
        "replica": "a",
        "seconds": 1.5,
    }


def test_an_exception_is_part_of_its_record() -> None:
    try:
        raise ValueError("broken")
    except ValueError as error:
        made = record()
        made.exc_info = (ValueError, error, error.__traceback__)
    assert "broken" in orjson.loads(JsonFormatter().format(made))["exception"]


def test_text_is_one_line() -> None:
    line = TextFormatter().format(record(replica="a"))
    assert line.endswith("INFO    hpkv.test: done 3 replica=a")


def test_control_characters_do_not_break_a_line() -> None:
    made = record(path="/v1\r\n\x1b[2J\x85\u2028é")
    made.msg = "a\nb %d"
    assert TextFormatter().format(made).endswith(r"a\nb 3 path=/v1\r\n\x1b[2J\x85\u2028é")


async def test_one_line_a_request_without_prompt_or_key(
    serve: Serve, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    running = await serve(engine, log=LogSettings().model_dump(), access={"api_keys": ["sk-secret"]})
    with caplog.at_level(logging.DEBUG):
        await running.client.post(
            "/v1/chat/completions?key=sk-query",
            json={"model": "fake", "messages": [{"role": "user", "content": "PROMPT"}], "max_tokens": 2},
            headers={"authorization": "Bearer sk-secret", "x-request-id": "id-1"},
        )
        await running.client.post("/v1/chat/completions", content=b'{"model":"PROMPT')
    ours = [made for made in caplog.records if made.name.startswith("gateway")]
    lines = [JsonFormatter().format(made) for made in ours]
    assert not [line for line in lines if "PROMPT" in line or "sk-" in line]
    answered = [orjson.loads(line) for line in lines if '"id-1"' in line]
    assert len(answered) == 1
    assert answered[0]["status"] == 200
    assert answered[0]["replica"] == "replica-0"
    assert answered[0]["completion_tokens"] == 2
