"""Seconds to the first token of one prompt."""

import json
import time
from http.client import HTTPConnection
from typing import Any

from benchmarks.engines import MODEL
from benchmarks.servers import ServerFailed

TIMEOUT_S = 300


def ttft(port: int, prompt: list[int], cached: int) -> float:
    """Ask a server on this machine. Raises ServerFailed unless so many tokens were cached."""
    body: dict[str, Any] = {
        "model": MODEL,
        "prompt": prompt,
        "max_tokens": 1,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    connection = HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    connection.connect()
    begun = time.perf_counter()
    connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    answer = connection.getresponse()
    first = answer.readline()
    seconds = time.perf_counter() - begun
    lines = [first, *answer.read().splitlines()]
    connection.close()
    usage = [json.loads(line[6:])["usage"] for line in lines if b'"usage":{' in line]
    if not usage:
        raise ServerFailed(f"port {port}: {answer.status} {lines[-3:]!r}")
    found = (usage[-1]["prompt_tokens_details"] or {}).get("cached_tokens") or 0
    if found != cached:
        raise ServerFailed(f"{found} tokens were cached instead of {cached}")
    return seconds
