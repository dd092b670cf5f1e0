"""`POST /v1/route` and `hpkv route`."""

import asyncio
import logging
from pathlib import Path

import httpx2
import orjson
import pytest
from typer.testing import CliRunner, Result

from gateway.commands import app
from gateway.settings import LogSettings
from tests.fakes.engine import FakeEngine
from tests.gateway.conftest import Running, Serve, chat


async def command(running: Running, *flags: str, key: str = "") -> Result:
    arguments = ["route", "--url", running.url, *flags]
    return await asyncio.to_thread(CliRunner().invoke, app, arguments, env={"HPKV_ADMIN_KEY": key})


async def test_it_tells_without_sending(serve: Serve, engine: FakeEngine, other: FakeEngine) -> None:
    running = await serve(engine, other)
    answer = await running.client.post("/v1/route", json=chat("x" * 400))
    told = answer.json()
    assert told["replica"] in ("replica-0", "replica-1")
    assert {candidate["replica"] for candidate in told["candidates"]} == {"replica-0", "replica-1"}
    for candidate in told["candidates"]:
        terms = candidate["queue_s"] + candidate["prefill_s"] + candidate["overhead_s"]
        assert candidate["ttft_s"] == terms
        assert set(candidate["cached_tokens"]) == {"gpu", "host", "ssd", "shared"}
    assert not engine.requests("/v1/chat/completions") + other.requests("/v1/chat/completions")


async def test_completions_and_responses_can_be_asked_about(serve: Serve, engine: FakeEngine) -> None:
    running = await serve(engine)
    for body in ({"model": "fake", "prompt": "p"}, {"model": "fake", "input": "i"}):
        assert (await running.client.post("/v1/route", json=body)).json()["replica"] == "replica-0"


async def test_what_cannot_be_routed(serve: Serve, engine: FakeEngine) -> None:
    running = await serve(engine)
    for body, status in (({"model": "fake"}, 400), (chat(model="none"), 404), ({"messages": []}, 400)):
        assert (await running.client.post("/v1/route", json=body)).status_code == status


async def test_a_field_of_a_wrong_type_is_named(serve: Serve, engine: FakeEngine) -> None:
    running = await serve(engine)
    for field in ("messages", "prompt", "input"):
        answer = await running.client.post("/v1/route", json={"model": "fake", field: 7})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == field


async def test_a_client_that_leaves_is_no_unexpected_error(
    serve: Serve, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    running = await serve(engine, log=LogSettings().model_dump())
    url = httpx2.URL(running.url)
    caplog.set_level(logging.INFO)
    _, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(b"POST /v1/route HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
    await writer.drain()
    writer.close()
    async with asyncio.timeout(20):
        while not (lines := [made for made in caplog.records if made.message == "request"]):
            await asyncio.sleep(0.01)
    assert lines[0].__dict__["status"] == 499
    assert not [made for made in caplog.records if made.message == "unexpected error"]


async def test_it_takes_an_admin_key(serve: Serve, engine: FakeEngine) -> None:
    running = await serve(engine, access={"api_keys": ["sk-user"], "admin_keys": ["sk-admin"]})
    for key, status in (("", 401), ("sk-user", 403), ("sk-admin", 200)):
        headers = {"authorization": f"Bearer {key}"} if key else {}
        assert (await running.client.post("/v1/route", json=chat(), headers=headers)).status_code == status


async def test_the_command(serve: Serve, engine: FakeEngine, tmp_path: Path) -> None:
    running = await serve(engine, access={"api_keys": ["sk-user"], "admin_keys": ["sk-admin"]})
    result = await command(running, "--model", "fake", "--prompt", "hi", key="sk-admin")
    assert result.output == "replica-0\n"
    body = tmp_path / "body.json"
    body.write_bytes(orjson.dumps(chat("hi")))
    result = await command(running, "--explain", "--body", str(body), key="sk-admin")
    assert "* replica-0" in result.output
    assert "to prefill" in result.output
    result = await command(running, "--model", "fake", "--prompt", "hi", key="wrong")
    assert result.exit_code == 1
    assert "Incorrect API key" in result.output
    assert "--key" in result.output


async def test_the_command_without_a_gateway(serve: Serve, engine: FakeEngine) -> None:
    running = await serve(engine)
    running.url = "http://127.0.0.1:9"
    result = await command(running, "--model", "fake", "--prompt", "hi")
    assert result.exit_code == 1
    assert "is a gateway running there?" in result.output
