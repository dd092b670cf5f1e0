"""Asking a running gateway where a request would go, for the command line."""

from collections.abc import Iterator
from typing import Any

import httpx2

_TIERS = ("gpu", "host", "ssd", "shared")
_KEY = " Give an admin key by --key or HPKV_ADMIN_KEY."


class AskError(Exception):
    """The gateway can't be asked, or refused; the message says why."""


def ask_route(url: str, key: str, body: bytes, *, explain: bool) -> Iterator[str]:
    """Lines that tell the replica, and with `explain` a table of all of them.

    Raises:
        AskError
    """
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
    try:
        answer = httpx2.post(f"{url.rstrip('/')}/v1/route", content=body, headers=headers, timeout=30)
    except httpx2.HTTPError as error:
        raise AskError(f"no answer from {url}: {error}; is a gateway running there? (--url)") from error
    if answer.status_code != 200:
        raise AskError(_message(answer) + (_KEY if answer.status_code in (401, 403) else ""))
    route = answer.json()
    yield route["replica"]
    if explain:
        yield from _table(route)


def _message(answer: httpx2.Response) -> str:
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the gateway answered {answer.status_code}"


def _table(route: dict[str, Any]) -> Iterator[str]:
    prompt = route["prompt"]
    known = "known" if prompt["known"] else f"unknown ({prompt['unknown']}), length estimated"
    yield f"prompt: {prompt['tokens']} tokens, {known}"
    times = "".join(f"{term:>10}" for term in ("queue", "load", "prefill", "overhead", "ttft"))
    yield f"{'replica':<24}{'cached':>24}{'to prefill':>12}{times}"
    for candidate in sorted(route["candidates"], key=lambda c: c["ttft_s"]):
        cached = candidate["cached_tokens"]
        held = " ".join(f"{tier} {cached[tier]}" for tier in _TIERS if cached[tier]) or "-"
        times = "".join(
            f"{candidate[term] * 1000:>7.0f} ms"
            for term in ("queue_s", "load_s", "prefill_s", "overhead_s", "ttft_s")
        )
        mark = "*" if candidate["replica"] == route["replica"] else " "
        yield f"{mark} {candidate['replica']:<22}{held:>24}{candidate['prefill_tokens']:>12}{times}"
