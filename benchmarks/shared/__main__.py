"""`python -m benchmarks.shared`: the shared stores' figures. 8 minutes, 15 GB of disk, given back."""

import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.report import Report
from benchmarks.servers import HOME
from benchmarks.shared import bucket, matching, mooncake, posix

PARTS = {
    "match": matching.measure,
    "mooncake": mooncake.measure,
    "object": bucket.measure,
    "posix": posix.measure,
}


def main(
    folder: Annotated[Path, typer.Option(help="On the disk to measure; made and removed.")] = HOME
    / "bench-shared",
    only: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(PARTS)}.")] = None,
) -> None:
    report = Report("shared", partial=bool(only))
    if folder.exists():
        raise typer.BadParameter(f"{folder} exists; name a new folder")
    folder.mkdir(parents=True)
    try:
        for part in only or PARTS:
            PARTS[part](report, folder / part)
    finally:
        shutil.rmtree(folder)
    sys.exit(report.finish())


if __name__ == "__main__":
    typer.run(main)
