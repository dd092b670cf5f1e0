"""Sizes in bytes as people write them."""

import re
from fractions import Fraction

_UNITS = {
    "B": 1,
    **{f"{prefix}B": 1000**power for power, prefix in enumerate("kMGTP", 1)},
    **{f"{prefix}iB": 1 << 10 * power for power, prefix in enumerate("KMGTP", 1)},
}
_SIZE = re.compile(rf"(\d+(?:\.\d+)?)\s*({'|'.join(_UNITS)})?")


def parse_size(value: object) -> int:
    """Bytes of "8GiB" (2^30 each), "8GB" (10^9 each), "8192" or 8192. Raises ValueError."""
    found = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if found:
        return int(Fraction(found[1]) * _UNITS[found[2] or "B"])
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError(f"{value!r} is no size: write a number and a unit, such as 8GiB (2^30) or 8GB (10^9)")


def format_size(size: int) -> str:
    """The shortest way to write a size that loses nothing: "8GiB", "1536MiB", "8GB", "8193B"."""
    whole = [f"{size // unit}{name}" for name, unit in _UNITS.items() if size % unit == 0]
    return min(whole, key=len) if size else "0B"
