"""Scenario: chats of many turns, more than the engines' own caches hold.

Pairs of replicas take turns, with tiers and without, and on each pair its contenders. Each run has chats of
its own, of the same lengths, so that nothing is left from the one before. The plain replicas stand behind the
router that belongs to their engine, for both policies, so that they don't pay for our gateway.
"""

import itertools
import statistics
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from benchmarks.e2e import fronts, replicas
from benchmarks.e2e.chats import CHAT_TOKENS, TURNS, Chat, Words
from benchmarks.e2e.client import Load, Result
from benchmarks.engines import MODEL, ROOT
from benchmarks.report import Report
from benchmarks.servers import HOME, Server, ServerFailed
from benchmarks.stats import median_interval, paired_ratios

CHATS = 16
AT_ONCE = 4
GPU_CHATS = 3
HOST_CHATS = 5
"""A replica's share of the chats is eight: `host` holds more than `gpu` and not all."""
WARM = 3
"""First turns that warm up each replica and don't count."""
ROUNDS = 2
CLIENT_S = 600


class Contender(NamedTuple):
    """Who answers: replicas with tiers or without, and what stands before them."""

    name: str
    tiers: bool
    front: Callable[[str, fronts.Replicas], AbstractContextManager[Server]]


OURS = "HPKV"
PLAIN = {"round robin": "round_robin", "cache_aware": "cache_aware"}
CONTENDERS = (
    Contender(OURS, True, fronts.gateway),
    Contender("HPKV without prefetch", True, partial(fronts.gateway, routing={"prefetch": False})),
    *(Contender(name, False, partial(fronts.router, policy)) for name, policy in PLAIN.items()),
)


def measure(report: Report, engine: str, folder: Path, rounds: int = ROUNDS) -> None:
    """All contenders, in one order and in the other."""
    order = [one for number in range(rounds) for one in (CONTENDERS[::-1] if number % 2 else CONTENDERS)]
    words, seeds = Words(HOME / "models" / MODEL), itertools.count(1)
    results: dict[str, list[Result]] = {one.name: [] for one in CONTENDERS}
    for tiers, contenders in itertools.groupby(order, lambda one: one.tiers):
        host_tokens = HOST_CHATS * CHAT_TOKENS if tiers else 0
        with replicas.running(engine, folder, GPU_CHATS * CHAT_TOKENS, host_tokens) as pair:
            for replica in pair:
                _ask(replica.port, [words.chat(next(seeds))[:1] for _ in range(WARM)])
            for one in contenders:
                chats = [words.chat(next(seeds)) for _ in range(CHATS)]
                with one.front(engine, pair) as front:
                    results[one.name].append(_ask(front.port, chats))
    _report(report, results)


def _ask(port: int, chats: list[Chat]) -> Result:
    """Let the client ask. Raises ServerFailed unless all answers were whole."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.e2e.client"],
        input=msgspec.json.encode(Load(port, MODEL, chats, AT_ONCE)),
        capture_output=True,
        cwd=ROOT,
        timeout=CLIENT_S,
        check=False,
    )
    if done.returncode:
        raise ServerFailed(f"the client ended with {done.stderr.decode()[-2000:]}")
    return msgspec.json.decode(done.stdout, type=Result)


def _ttft(result: Result) -> float:
    return statistics.fmean(turn.ttft_s for turn in result.turns)


def _rate(result: Result) -> float:
    return len(result.turns) / result.seconds


def _report(report: Report, results: dict[str, list[Result]]) -> None:
    ours = results[OURS]
    for name in PLAIN:
        ttft = paired_ratios(list(map(_ttft, ours)), list(map(_ttft, results[name])))
        report.add(f"multi-turn mean TTFT, HPKV / plain behind {name}", ttft.median, "", ttft.spread)
        rate = paired_ratios(list(map(_rate, ours)), list(map(_rate, results[name])))
        report.add(f"multi-turn requests/s, HPKV / plain behind {name}", rate.median, "", rate.spread)
    for name, runs in results.items():
        ttft = median_interval([1e3 * _ttft(run) for run in runs])
        report.add(f"multi-turn mean TTFT, {name}", ttft.median, "ms", ttft.spread)
        rate = median_interval([_rate(run) for run in runs])
        report.add(f"multi-turn requests/s, {name}", rate.median, "", rate.spread)
        report.note(f"multi-turn load, {name}: {_by_turn(runs)}.")


def _by_turn(runs: list[Result]) -> str:
    """Where the time to the first token goes."""
    turns = [turn for run in runs for turn in run.turns]
    prompt, cached = sum(turn.prompt_tokens for turn in turns), sum(turn.cached_tokens for turn in turns)
    means = [
        statistics.fmean(turn.ttft_s for turn in turns if turn.number == number) for number in range(TURNS)
    ]
    told = ", ".join(f"{mean:.2f}" for mean in means)
    return f"mean TTFT turn by turn {told} s; {cached / prompt:.0%} of {prompt:,} prompt tokens were cached"
