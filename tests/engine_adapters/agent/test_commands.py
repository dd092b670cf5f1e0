"""`hpkv agent` against an agent that runs."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from engine_adapters.agent import keys
from engine_adapters.commands import app
from tests.engine_adapters.agent.build import Served, free_address, tokens
from tests.engine_adapters.agent.conftest import Serve

PROMPT = tokens(4)


@pytest.fixture
def served(serve: Serve) -> Served:
    return serve()


@pytest.fixture
def prompt(tmp_path: Path) -> str:
    (tmp_path / "prompt.json").write_text(json.dumps(PROMPT.tolist()))
    return str(tmp_path / "prompt.json")


def run(served: Served, *args: str, env: dict[str, str] | None = None, fails: int = 0) -> str:
    where = {"HPKV_AGENT": served.agent.endpoints.control} | (env or {})
    done = CliRunner(env=where).invoke(app, ["agent", *args], terminal_width=200)
    assert done.exit_code == fails, done.output
    return done.output


def test_who_it_is_and_how_it_fares(served: Served) -> None:
    assert "fake 1 with m" in run(served, "hello")
    assert json.loads(run(served, "hello", "--json"))["page_tokens"] == 16
    assert "prefetches ordered: 0" in run(served, "stats")
    assert json.loads(run(served, "stats", "--json"))["threshold"] == 16


def test_of_gpu_the_agent_knows_the_size_alone(serve: Serve) -> None:
    (gpu,) = (line for line in run(serve(), "hello").splitlines() if line.startswith("gpu"))
    assert gpu == "gpu: 2.0 MiB"


def test_a_ticket_that_is_none(served: Served) -> None:
    for cancel in ([], ["--cancel"]):
        assert run(served, "status", "12345", *cancel).startswith("no such ticket")


def test_a_prompts_way_up(served: Served, prompt: str) -> None:
    assert run(served, "match", "--tokens", prompt) == "no tier has any of it\n"
    served.put(PROMPT)
    served.drop_host()
    assert run(served, "match", "--tokens", prompt) == "up to 64: ssd\na request would load up to 64\n"
    order = json.loads(run(served, "prefetch", "--tokens", prompt, "--json"))
    assert order["cut"] == 64
    assert "64 tokens" in run(served, "status", str(order["ticket"]))
    assert run(served, "status", "--cancel", str(order["ticket"])).startswith("ended")
    assert run(served, "prefetch", "--tokens", prompt, "--computed", "64") == (
        "nothing to load\nno tier has any of it\n"
    )


def test_pins(served: Served, prompt: str) -> None:
    served.put(PROMPT)
    assert run(served, "pin", "--tokens", prompt, "--seconds", "5") == "64 tokens are kept for 5 s\n"
    assert run(served, "unpin", "--tokens", prompt) == "0 tokens are kept\n"


def test_snapshots(served: Served) -> None:
    served.put(PROMPT)
    assert served.rig.tiers.drain(5)
    assert run(served, "snapshot", "ssd").startswith("ssd: 4 pages, as of message ")
    pages = json.loads(run(served, "snapshot", "ssd", "--json"))["pages"]
    assert {(int(key, 16), end) for key, end in pages} == served.names(PROMPT)
    assert "tape is no tier: write host, ssd or shared" in run(served, "snapshot", "tape", fails=1)
    assert "gpu is the engine's own" in run(served, "snapshot", "gpu", fails=1)


def test_clear_wants_a_salt_or_all(served: Served, prompt: str, tmp_path: Path) -> None:
    served.put(PROMPT, salt="a")
    assert served.rig.tiers.drain(5)
    (tmp_path / "salt").write_text("a\n")
    assert "pass --salt-file FILE (or set HPKV_SALT)" in run(served, "clear", fails=2)
    assert "leave one out" in run(served, "clear", "--all", env={"HPKV_SALT": "a"}, fails=2)
    assert run(served, "clear", "--tier", "host", env={"HPKV_SALT": "b"}) == "0 pages removed\n"
    assert run(served, "match", "--tokens", prompt, env={"HPKV_SALT": "a"}).startswith("up to 64: host")
    assert run(served, "clear", "--salt-file", str(tmp_path / "salt")) == "8 pages removed\n"
    served.put(PROMPT)
    assert served.rig.tiers.drain(5)
    assert run(served, "clear", "--all", "--tier", "ssd") == "4 pages removed\n"


@pytest.mark.parametrize("text", ["", "{}", '["a"]', "[-1]", "[4294967296]"])
def test_tokens_that_are_none(served: Served, tmp_path: Path, text: str) -> None:
    (tmp_path / "bad").write_text(text)
    output = run(served, "match", "--tokens", str(tmp_path / "bad"), fails=1)
    assert "is no JSON list of token ids" in output


def test_an_engines_own_answer_has_tokens(served: Served, tmp_path: Path) -> None:
    answer = {"count": len(PROMPT), "max_model_len": 8192, "tokens": PROMPT.tolist()}
    (tmp_path / "answer").write_text(json.dumps(answer))
    assert run(served, "match", "--tokens", str(tmp_path / "answer")).startswith("no tier")


def test_tokens_that_are_nowhere(served: Served, tmp_path: Path) -> None:
    assert "No such file" in run(served, "match", "--tokens", str(tmp_path / "none"), fails=1)


@pytest.mark.parametrize("address", ["127.0.0.1:5600", "http://127.0.0.1:5600", "tcp://127.0.0.1"])
def test_no_address(address: str) -> None:
    done = CliRunner().invoke(app, ["agent", "hello", "--agent", address])
    assert done.exit_code == 1
    assert f"{address} is no agent's address: write tcp://HOST:PORT or ipc://PATH" in done.output


def test_nobody_there() -> None:
    done = CliRunner().invoke(app, ["agent", "hello", "--agent", free_address()])
    assert (done.exit_code, "nobody listens there" in done.output) == (1, True)


def test_keys(serve: Serve, tmp_path: Path) -> None:
    runner = CliRunner()
    for who in ("agent", "me"):
        done = runner.invoke(app, ["agent", "keys", str(tmp_path / who)])
        assert done.output.strip().encode() == keys.read_key(tmp_path / who / "public.key")
    again = runner.invoke(app, ["agent", "keys", str(tmp_path / "me")])
    assert (again.exit_code, "File exists" in again.output) == (1, True)
    assert (tmp_path / "me" / "secret.key").stat().st_mode & 0o777 == 0o600
    files = {"key_file": tmp_path / "agent" / "secret.key", "clients_file": tmp_path / "me" / "public.key"}
    guarded = serve(agent=files)
    own = ["--key-file", str(tmp_path / "me" / "secret.key")]
    theirs = ["--server-key", str(tmp_path / "agent" / "public.key")]
    assert "fake" in run(guarded, "hello", *own, *theirs)
    assert "turns this client away" in run(guarded, "hello", fails=1)
    assert "give both or neither" in run(guarded, "hello", *own, fails=1)
