"""Draws the figures on stdin into the SVG named by the argument; runs in matplotlib's own environment."""

import json
import sys

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

STYLES = {
    "optimum": {"color": "0.45", "linestyle": "--"},
    "ours": {"color": "C0", "linewidth": 2.5},
    "S3-FIFO": {"color": "C1"},
    "ARC": {"color": "C2"},
}

mpl.rcParams.update({"svg.hashsalt": "eviction", "font.size": 10})  # the same figures draw the same file
given = json.load(sys.stdin)
figure = Figure(figsize=(7, 4.2), layout="constrained")
axes = figure.subplots()
for name, style in STYLES.items():
    axes.plot(given["shares"], given["rates"][name], marker="o", markersize=4, label=name, **style)
axes.set_xscale("log")
axes.xaxis.set_major_locator(FixedLocator(given["shares"]))
axes.xaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:g} %"))
axes.xaxis.set_minor_locator(NullLocator())
axes.set_xlabel("cache size, of the trace's unique blocks")
axes.set_ylabel("hit rate, % of blocks, by prefix")
axes.set_ylim(bottom=0)
axes.grid(alpha=0.3)
axes.legend(frameon=False)
for side in ("top", "right"):
    axes.spines[side].set_visible(False)
figure.savefig(sys.argv[1], format="svg", metadata={"Date": None})
