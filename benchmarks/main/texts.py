"""Messages that nobody has seen, made alike by Python and by wrk's Lua (unseen.lua)."""

from functools import cache
from itertools import product
from pathlib import Path

from benchmarks.servers import HOME

MESSAGE_CHARS = 1880
"""Of a 2 KB chat's last message."""

_SUBJECTS = (
    "The old lighthouse keeper",
    "Our second compiler pass",
    "A quarterly budget review",
    "Every migrating crane",
    "The museum's night guard",
    "One forgotten sonata",
    "This proxy's retry logic",
    "The harbour committee",
)
_VERBS = (
    "quietly rearranged",
    "could not explain",
    "measured twice",
    "borrowed, then returned,",
    "documented in detail",
    "dreamt about",
    "rejected without comment",
    "carefully photographed",
)
_OBJECTS = (
    "seventeen copper kettles beside the canal.",
    "the results of a 2019 survey on bread prices!",
    "an unusually bright comet over Lisbon.",
    "whatever the tide had left behind;",
    "a list of 3,141 misspelt street names.",
    "the difference between latency and throughput?",
    "her grandmother's recipe for plum dumplings.",
    "a bug that appeared only on Thursdays.",
)
SENTENCES = tuple(" ".join(words) for words in product(_SUBJECTS, _VERBS, _OBJECTS))


def message(number: int, chars: int = MESSAGE_CHARS) -> str:
    """The message of this number: it differs from all others from its first words on. ASCII, no quotes."""
    parts, length, i = [f"Question {number}."], len(f"Question {number}."), 0
    while length < chars:
        parts.append(SENTENCES[(number * 131 + i * 37) % len(SENTENCES)])
        length += 1 + len(parts[-1])
        i += 1
    return " ".join(parts)[:chars]


@cache
def sentences_file() -> Path:
    """The sentences, one a line, for wrk."""
    path = HOME / "build" / "sentences.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(SENTENCES) + "\n", encoding="utf-8")
    return path
