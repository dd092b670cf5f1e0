"""Scenario: an agent that is asked of a long prompt, with the engine idle and while an answer is written."""

import os
import random
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import zmq

from benchmarks.e2e import replicas
from benchmarks.engines import MODEL
from benchmarks.report import Report
from benchmarks.servers import ServerFailed
from benchmarks.stats import median_interval, paired_ratios
from engine_adapters import wire
from engine_adapters.replica import LocalReplica

TOKENS = 4000
WHOLE = TOKENS // replicas.BLOCK * replicas.BLOCK
CALLS = 1000
PER_S = 100
PAIRS = 15
ANSWER_TOKENS = 100
STORED_S = 60
MATCH = f"agent's match of a {TOKENS:,}-token prompt, idle engine, p50"
DECODE = f"decode throughput with the agent under {PER_S} match calls/s / without"


def measure(report: Report, engine: str, folder: Path) -> None:
    """Look-ups one after the other; then answers by turns with look-ups beside them and without."""
    prompt = random.Random(1).choices(range(1000, 40000), k=TOKENS)
    # The model computes on half of the cores; on the others are the agent, as beside a GPU, and its client.
    with replicas.running(engine, folder, 3 * TOKENS, 3 * TOKENS, count=1, shares=2) as (replica,):
        if not replica.agent:
            raise ServerFailed(f"an {engine} replica without an agent")
        _complete(replica, prompt, 1)
        with Asker(replica.agent, prompt) as asker:
            _await_stored(asker)
            _idle(report, [asker.ask() for _ in range(CALLS)])
            _busy(report, replica, asker)


class Asker:
    """Asks an agent for its match of one prompt. One thread at a time."""

    def __init__(self, agent: str, prompt: list[int]) -> None:
        call = msgspec.msgpack.encode(wire.Match(tokens=wire.pack_tokens(prompt)))
        self._frame = msgspec.msgpack.encode(wire.Envelope(wire.VERSION, 1, msgspec.Raw(call)))
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.rcvtimeo = 10_000
        self._socket.connect(agent)

    def ask(self) -> float:
        """Seconds until the answer was there."""
        begun = time.perf_counter()
        self._socket.send(self._frame)
        self._answer = self._socket.recv()
        return time.perf_counter() - begun

    def found(self) -> int:
        """Tokens that the last answer told of."""
        envelope = msgspec.msgpack.decode(self._answer, type=wire.Envelope)
        answer = msgspec.msgpack.decode(envelope.body, type=wire.Answer)
        if not isinstance(answer, wire.Found):
            raise ServerFailed(f"the agent answered {answer}")
        return answer.spans[-1].end if answer.spans else 0

    def keep_asking(self, over: threading.Event, cores: set[int]) -> float:
        """`PER_S` times a second, late ones at once, until it is over; returns how often a second.

        The thread that calls this keeps to `cores` from then on.
        """
        os.sched_setaffinity(0, cores)
        begun = due = time.perf_counter()
        calls = 0
        while not over.is_set():
            self.ask()
            calls += 1
            due += 1 / PER_S
            time.sleep(max(due - time.perf_counter(), 0))
        return calls / (time.perf_counter() - begun)

    def __enter__(self) -> "Asker":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._context.term()


def _await_stored(asker: Asker) -> None:
    deadline = time.monotonic() + STORED_S
    while asker.ask() and asker.found() < WHOLE:
        if time.monotonic() > deadline:
            raise ServerFailed(f"the tiers have {asker.found()} tokens of {WHOLE} after {STORED_S} s")
        time.sleep(0.1)


def _idle(report: Report, seconds: list[float]) -> None:
    ms = median_interval([1e3 * one for one in seconds])
    report.add(MATCH, ms.median, "ms", ms.spread)
    report.add("the same, p99", 1e3 * statistics.quantiles(seconds, n=100)[98], "ms")


def _busy(report: Report, replica: LocalReplica, asker: Asker) -> None:
    asked: list[float] = []
    rates: dict[bool, list[float]] = {True: [], False: []}
    _complete(replica, [1], ANSWER_TOKENS)  # warms up
    others = os.sched_getaffinity(0) - set(replica.cores)
    for number in range(PAIRS):
        for beside in (True, False) if number % 2 else (False, True):
            over = threading.Event()
            with ThreadPoolExecutor(1) as client:
                asking = client.submit(asker.keep_asking, over, others) if beside else None
                try:
                    rates[beside].append(ANSWER_TOKENS / _complete(replica, [1], ANSWER_TOKENS))
                finally:
                    over.set()
                if asking is not None:
                    asked.append(asking.result())
    ratio = paired_ratios(rates[True], rates[False])
    report.add(DECODE, ratio.median, "", ratio.spread)
    for beside, name in ((True, "with"), (False, "without")):
        rate = median_interval(rates[beside])
        report.add(f"decode throughput {name} match calls beside it", rate.median, "tokens/s", rate.spread)
    report.note(
        f"agent: {statistics.median(asked):.0f} match calls/s were answered while an answer was written; "
        "the model computes on one half of the cores, agent and client run on the other."
    )


def _complete(replica: LocalReplica, prompt: list[int], tokens: int) -> float:
    """Seconds of one answer."""
    body: dict[str, Any] = {
        "model": MODEL,
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    begun = time.perf_counter()
    httpx2.post(f"{replica.url}/v1/completions", json=body, timeout=300).raise_for_status()
    return time.perf_counter() - begun
