"""What SGLang's storage calls don't carry: whose a page is, and where it ends in its prompt.

They name a page by SGLang's chained hash alone. Before SGLang stores or fetches pages, it says of which
tokens they are: what is noted then is found here by the hash.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

from cache.keys import Page, tenant_tag
from cache.prefix import Tokens, prefix_keys, seed

LIMIT: Final = 1 << 18
"""Pages remembered, some 200 bytes each; a prompt's are asked for soon after they were noted."""


class Owner(NamedTuple):
    """What besides its tokens a prompt's pages depend on."""

    salt: str | None = None
    extra_key: str | None = None
    """SGLang's own further name of a cache; a LoRA's id is at its end."""

    @property
    def known(self) -> bool:
        """Whether the gateway can name such prompts: it knows salts, and no extra keys."""
        return self.extra_key is None


class Names:
    """Storage key → page, for the latest. Noted by the scheduler's thread, read by storage threads."""

    def __init__(self, page_tokens: int, limit: int = LIMIT) -> None:
        self._page_tokens = page_tokens
        self._limit = limit
        self._known: OrderedDict[str, Page] = OrderedDict()
        self._lock = threading.Lock()

    def note(
        self, keys: Sequence[str], tokens: Tokens | Sequence[int], parent: str | None, owner: Owner
    ) -> None:
        """Note pages that follow the page `parent`; None: they begin the prompt.

        `tokens` are theirs; some may be left over. Pages whose parent isn't known stay unknown.
        """
        if not keys or not owner.known:
            return
        with self._lock:
            before = self._known.get(parent) if parent is not None else None
            if parent is not None and before is None:
                return
            start = before.end_token if before is not None else 0
            base = before.prefix_key if before is not None else seed(None, owner.salt)
            sums = prefix_keys(
                tokens[: len(keys) * self._page_tokens], self._page_tokens, base, start
            ).tolist()
            tag = tenant_tag(owner.salt)
            for number, (key, prefix_key) in enumerate(zip(keys, sums, strict=False), 1):
                end = start + number * self._page_tokens
                self._known[key] = Page(bytes.fromhex(key), prefix_key, end, tag)
                self._known.move_to_end(key)
            while len(self._known) > self._limit:
                self._known.popitem(last=False)

    def page(self, key: str) -> Page:
        """The page of a storage key. One that wasn't noted ends at 0, and isn't published."""
        with self._lock:
            return self._known.get(key) or Page(bytes.fromhex(key), 0, 0)
