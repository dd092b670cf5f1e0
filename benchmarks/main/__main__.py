"""`python -m benchmarks.main [--profile]`: the table, or where the CPU time goes instead."""

import sys
import time

import typer

from benchmarks.main import requests, streams
from benchmarks.main.profile import profile as run_profile
from benchmarks.main.rig import running_rig
from benchmarks.report import Report

SCENARIOS = (requests, streams)


def main(profile: bool = typer.Option(False, help="profile under load instead of measuring")) -> None:
    report = Report("main")
    with running_rig() as rig:
        if profile:
            run_profile(rig)
            return
        started, foreign = time.monotonic(), rig.foreign_seconds()
        for scenario in SCENARIOS:
            scenario.measure(rig, report)
        share = (rig.foreign_seconds() - foreign) / (time.monotonic() - started)
    report.note(f"Other processes used {share:.0%} of the core of the servers under test.")
    for reason in rig.missing:
        report.note(reason)
    report.note("Latencies are of a closed loop: at 64 connections they are mostly the wait for one core.")
    sys.exit(report.finish())


if __name__ == "__main__":
    typer.run(main)
