"""`/v1/cache`: a gateway before fake engines whose agents speak the real wire."""

from pathlib import Path
from typing import Any

import httpx2
import pytest

from cache.prefix import PrefixKeys, seed
from engine_adapters import wire
from gateway.tokenization import Endpoint
from tests.fakes.agent import FakeAgent
from tests.fakes.byte_model import save_byte_model
from tests.gateway.conftest import until
from tests.gateway.prefetch.conftest import MakeSite, Site, agents_of, site

__all__ = ["agents_of", "site"]

IDS = [number % 200 for number in range(512)]
SYSTEM = {"role": "system", "content": "You follow all of the many rules of a large company. " * 4}
BODY = {"model": "fake", "token_ids": IDS}


class Answers:
    """What an agent says of a prompt; `asked` are the calls about one."""

    def __init__(self, agent: FakeAgent) -> None:
        self.agent = agent
        self.order: wire.Answer = wire.Order(
            ticket=7, spans=[wire.Span("host", 64), wire.Span("shared", 320)], cut=256
        )
        self.kept: wire.Answer = wire.Kept(tokens=128, seconds=50)
        self.unpinned: wire.Answer = wire.Kept(tokens=0, seconds=0)
        self.asked: list[Any] = []
        agent.behave = self._behave

    def _behave(self, call: wire.Call, answers: list[wire.Answer]) -> list[wire.Answer]:
        if not isinstance(call, wire.Prefetch | wire.Pin | wire.Unpin):
            return answers
        self.asked.append(call)
        if isinstance(call, wire.Prefetch):
            return [self.order]
        return [self.kept if isinstance(call, wire.Pin) else self.unpinned]

    def calls(self) -> list[str]:
        return [type(call).__name__ for call in self.asked]


async def post(here: Site, what: str, key: str = "", **fields: Any) -> httpx2.Response:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return await here.client.post(f"/v1/cache/{what}", json={**BODY, **fields}, headers=headers)


def error(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["message"]


async def test_a_prefetch_says_what_is_where(site: MakeSite) -> None:
    here = await site()
    told = Answers(here.agents[0])
    answer = await post(here, "prefetch", cache_salt="tenant", ttl_s=30)
    assert answer.json() == {
        "object": "cache.prefetch",
        "model": "fake",
        "replica": "replica-0",
        "tokens": 512,
        "found": {"gpu": 0, "host": 64, "ssd": 0, "shared": 256},
        "loading": 192,
        "missing": 192,
        "ttl_s": 30.0,
    }
    (call,) = told.asked
    assert wire.tokens_of(call.tokens).tolist() == IDS
    assert (call.salt, call.lora, call.seconds, call.computed) == ("tenant", None, 30, 0)


async def test_it_goes_where_the_request_would_go(site: MakeSite) -> None:
    here = await site(2)
    here.agents[1].store("host", PrefixKeys(IDS, seed(None, None)))
    await here.settle()
    told = [Answers(agent) for agent in here.agents]
    for _ in range(3):
        assert (await post(here, "prefetch")).json()["replica"] == "replica-1"
    assert (await post(here, "prefetch", replica="replica-0")).json()["replica"] == "replica-0"
    assert [len(each.asked) for each in told] == [1, 3]
    assert error(await post(here, "prefetch", replica="elsewhere"))[0] == 404


CLOSING = (
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% else %}[The end.]{% endif %}"
)


@pytest.mark.parametrize("template", [None, CLOSING])
async def test_a_system_prompt_alone_is_the_beginning_of_later_chats(
    site: MakeSite, tmp_path: Path, template: str | None
) -> None:
    """Also under a template that closes a chat which nobody is to answer."""
    model = {"tokenizer": str(save_byte_model(tmp_path))}
    if template is not None:
        (tmp_path / "template").write_text(template)
        model["chat_template"] = str(tmp_path / "template")
    here = await site(models={"fake": model})
    told = Answers(here.agents[0])
    asked = {"model": "fake", "messages": [SYSTEM], "token_ids": None}
    answer = await post(here, "prefetch", **asked)
    assert answer.status_code == 200, answer.text
    begins = wire.tokens_of(told.asked[0].tokens).tolist()
    assert len(begins) > len(str(SYSTEM["content"]))
    tokenizer = next(iter(here.model.tokenizers()))[1]
    for question in ("What now?", "x", "0 and 1"):
        chat = {"model": "fake", "messages": [SYSTEM, {"role": "user", "content": question}]}
        ids = (await tokenizer.tokens(Endpoint.CHAT, chat)).ids.tolist()  # type: ignore[union-attr]
        assert ids[: len(begins)] == begins


async def test_a_chat_that_ends_with_a_question_is_the_prompt_of_its_request(site: MakeSite) -> None:
    here = await site()
    told = Answers(here.agents[0])
    chat = {"model": "fake", "messages": [SYSTEM, {"role": "user", "content": "What now?"}]}
    await post(here, "prefetch", token_ids=None, **chat)
    tokenizer = next(iter(here.model.tokenizers()))[1]
    ids = (await tokenizer.tokens(Endpoint.CHAT, chat)).ids.tolist()  # type: ignore[union-attr]
    assert wire.tokens_of(told.asked[0].tokens).tolist() == ids


async def test_a_pin_lasts_until_it_is_ended(site: MakeSite) -> None:
    here = await site()
    told = Answers(here.agents[0])
    pin = (await post(here, "pin", cache_salt="tenant", ttl_s=60)).json()
    assert pin == {
        "id": pin["id"],
        "object": "cache.pin",
        "model": "fake",
        "replica": "replica-0",
        "tokens": 512,
        "pinned": 128,
        "seconds": 50,
    }
    assert (told.asked[0].salt, told.asked[0].seconds) == ("tenant", 60)
    assert (await post(here, "pin", cache_salt="tenant")).json()["id"] == pin["id"], "the same, renewed"
    assert (await post(here, "pin", cache_salt="other")).json()["id"] != pin["id"]
    ended = await here.client.delete(f"/v1/cache/pin/{pin['id']}")
    assert (ended.status_code, ended.json()["deleted"]) == (200, True)
    assert (await here.client.delete(f"/v1/cache/pin/{pin['id']}")).status_code == 404
    assert (await post(here, "pin", cache_salt="other", ttl_s=0)).json()["deleted"]
    assert error(await post(here, "pin", cache_salt="other", ttl_s=0))[0] == 404
    assert told.calls() == ["Pin", "Pin", "Pin", "Unpin", "Unpin"]
    assert [call.salt for call in told.asked[3:]] == ["tenant", "other"]


async def test_a_pin_is_where_most_of_the_prompt_lies(site: MakeSite) -> None:
    here = await site(2)
    keys = PrefixKeys(IDS, seed(None, None))
    here.agents[0].store("shared", keys)
    here.agents[1].store("ssd", keys, stop=8)
    await here.settle()
    for agent in here.agents:
        Answers(agent)
    assert (await post(here, "pin")).json()["replica"] == "replica-1"


async def test_keys_do_not_end_or_shorten_each_others_pins(site: MakeSite) -> None:
    here = await site(access={"api_keys": ["a", "b"]})
    told = Answers(here.agents[0])
    told.kept = wire.Kept(tokens=128, seconds=600)
    pin = (await post(here, "pin", "a", ttl_s=600)).json()
    assert (await post(here, "pin", "b", ttl_s=10)).json()["seconds"] == 10
    assert told.asked[1].seconds > 500, "of which the agent has one"
    bearer = {"authorization": "Bearer b"}
    assert (await here.client.delete(f"/v1/cache/pin/{pin['id']}", headers=bearer)).status_code == 200
    assert (await here.client.delete(f"/v1/cache/pin/{pin['id']}", headers=bearer)).status_code == 404
    assert told.calls() == ["Pin", "Pin"]
    bearer = {"authorization": "Bearer a"}
    assert (await here.client.delete(f"/v1/cache/pin/{pin['id']}", headers=bearer)).status_code == 200
    assert told.calls() == ["Pin", "Pin", "Unpin"]
    assert (await post(here, "pin")).status_code == 401


async def test_a_pin_that_could_not_be_ended_is_still_there(site: MakeSite) -> None:
    here = await site()
    told = Answers(here.agents[0])
    pin = (await post(here, "pin")).json()
    told.unpinned = wire.Refused(code="busy", message="later")
    assert (await here.client.delete(f"/v1/cache/pin/{pin['id']}")).status_code == 503
    agent = here.replicas[0].agent
    assert agent is not None
    trouble, agent.trouble = agent.trouble, "mute"
    assert (await here.client.delete(f"/v1/cache/pin/{pin['id']}")).status_code == 501
    agent.trouble, told.unpinned = trouble, wire.Kept(tokens=0, seconds=0)
    assert (await here.client.delete(f"/v1/cache/pin/{pin['id']}")).status_code == 200
    assert told.calls() == ["Pin", "Unpin", "Unpin"]


async def test_a_key_has_its_share(site: MakeSite) -> None:
    here = await site(access={"api_keys": ["a", "b"]}, tenants={"pins": 1, "prefetches": 1, "tokens": 600})
    Answers(here.agents[0])
    for what in ("pin", "prefetch"):
        assert (await post(here, what, "a")).status_code == 200
        refused = await post(here, what, "a", cache_salt="more")
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert int(refused.headers["retry-after"]) > 0
        assert (await post(here, what, "b")).status_code == 200
        assert (await post(here, what, "b", token_ids=IDS * 2)).status_code == 429
    told = Answers(here.agents[0])
    told.order = wire.Order(ticket=0, spans=[], cut=0)
    told.kept = wire.Kept(tokens=0, seconds=0)
    for salt in ("1", "2"):  # what comes to nothing takes none of it
        for what in ("pin", "prefetch"):
            assert (await post(here, what, "b", cache_salt=salt)).status_code in (200, 429)
            assert (await post(here, what, "a", cache_salt=salt)).status_code == 429


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"token_ids": None}, "Give one of"),
        ({"prompt": "too"}, "Give one of"),
        ({"token_ids": []}, "one or more ids"),
        ({"token_ids": ["a"]}, "integers"),
        ({"token_ids": [1, "a"]}, "one or more ids"),
        ({"token_ids": "a"}, "token_ids"),
        ({"token_ids": None, "messages": []}, "empty"),
        (
            {"token_ids": None, "messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "text only",
        ),
        ({"ttl_s": -1}, "ttl_s"),
        ({"ttl_s": 100_000}, "ttl_s"),
        ({"ttl_s": "long"}, "ttl_s"),
        ({"model": None}, "model"),
    ],
)
async def test_what_is_no_prompt(site: MakeSite, fields: dict[str, Any], says: str) -> None:
    here = await site()
    for what in ("prefetch", "pin"):
        status, message = error(await post(here, what, **fields))
        assert status == 400
        assert says in message


async def test_without_an_agent_nothing_can_be_kept(site: MakeSite) -> None:
    here = await site()
    unanswered: list[wire.Call] = []
    here.agents[0].behave = lambda call, answers: unanswered.append(call)
    await until(lambda: bool(unanswered))  # what it has said before has come by then
    (replica,) = here.replicas
    assert replica.agent is not None
    replica.agent.lose("mute")
    for what in ("prefetch", "pin"):
        status, message = error(await post(here, what))
        assert status == 501
        assert "hpkv launch" in message
    assert error(await post(here, "pin", model="none"))[0] == 404


@pytest.mark.parametrize(("code", "status"), [("busy", 503), ("unknown_lora", 409), ("too_large", 400)])
async def test_an_agents_refusal_reaches_the_client(site: MakeSite, code: Any, status: int) -> None:
    here = await site()
    told = Answers(here.agents[0])
    told.order = told.kept = wire.Refused(code=code, message="because")
    for what in ("prefetch", "pin"):
        got, message = error(await post(here, what))
        assert got == status
        assert "because" in message
    told.order = told.kept = wire.Identity(  # which is no answer to that
        engine="", engine_version="", model="", namespace="", page_tokens=1, tiers={}, threshold=0, epoch=1
    )
    assert error(await post(here, "pin"))[0] == 503
