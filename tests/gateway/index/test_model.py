"""The index against a plain model: sets of prefixes, a set for each cache."""

from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from cache.prefix import PrefixKeys
from engine_adapters.events import Cleared, Origin, Tier
from gateway.index import Index, Span, Store
from tests.gateway.index.engine import Engine, batch, pages, work

SEED = Engine().seed
BLOCKS = {Origin("a"): 2, Origin("b"): 2, Origin("b", 1): 4}
STORES = {Origin("a"): Store("s", "n"), Origin("b"): Store("s", "n"), Origin("b", 1): Store("s", "m")}
PAGES = {Tier.HOST: 2, Tier.SSD: 4, Tier.SHARED: 6}

origins = st.sampled_from(list(BLOCKS))
# Three texts of 24 tokens that part after 6 and 12, cut anywhere: most prompts share much, as chats do.
TEXTS = [[1] * 24, [1] * 12 + [2] * 12, [1] * 6 + [3] * 18]
prompts = st.builds(lambda text, end: text[:end], st.sampled_from(TEXTS), st.integers(2, 24))
cuts = st.integers(0, 12)
changes = st.one_of(
    st.tuples(st.sampled_from(["stored", "removed"]), origins, prompts, cuts, cuts),
    st.tuples(
        st.sampled_from(["page stored", "page removed"]), origins, prompts, st.sampled_from(list(PAGES))
    ),
    st.tuples(st.just("cleared"), origins, st.sets(st.sampled_from([Tier.GPU, Tier.HOST]), min_size=1)),
    st.tuples(st.just("replaced"), origins),
    st.tuples(st.just("work"), st.integers(1, 3)),
)


class Model:
    """Each cache as a set of prefixes; `known` are the blocks that a parent may be."""

    def __init__(self) -> None:
        self.caches: dict[object, set[tuple[int, ...]]] = defaultdict(set)
        self.known: set[tuple[int, tuple[int, ...]]] = set()

    def cache(self, origin: Origin, tier: Tier) -> set[tuple[int, ...]]:
        return self.caches[STORES[origin] if tier is Tier.SHARED else (origin, tier)]

    def stored(self, origin: Origin, tokens: list[int], start: int, end: int) -> bool:
        """Whether the parent is known."""
        block = BLOCKS[origin]
        parent_known = start == 0 or (block, tuple(tokens[: start * block])) in self.known
        for i in range(start, end):
            prefix = tuple(tokens[: (i + 1) * block])
            if parent_known:
                self.known.add((block, prefix))
            if (block, prefix) in self.known:
                self.cache(origin, Tier.GPU).add(prefix)
        return parent_known

    def spans(self, origin: Origin, tokens: list[int]) -> list[Span]:
        """Token by token: in which tier lies the page that covers it."""
        page = {Tier.GPU: BLOCKS[origin], **PAGES}
        usable = len(tokens) - 1
        spans: list[Span] = []
        gpu_so_far = True
        for at in range(usable):
            ends = {tier: (at // size + 1) * size for tier, size in page.items()}
            tiers = [
                tier
                for tier, end in ends.items()
                if end <= usable and tuple(tokens[:end]) in self.cache(origin, tier)
            ]
            gpu_so_far = gpu_so_far and Tier.GPU in tiers
            tiers = [tier for tier in tiers if tier is not Tier.GPU or gpu_so_far]
            if not tiers:
                break
            if spans and spans[-1].tier is tiers[0]:
                spans[-1] = spans[-1]._replace(end=at + 1)
            else:
                spans.append(Span(tiers[0], at, at + 1))
        return spans


def attach(index: Index, origin: Origin) -> None:
    index.attach(origin, pages={Tier.GPU: BLOCKS[origin], **PAGES}, store=STORES[origin])


def change(index: Index, model: Model, kind: str, origin: Origin, *rest) -> None:
    engine = Engine(BLOCKS[origin])
    if kind in ("stored", "removed"):
        tokens, *cut = rest
        start, end = sorted(min(at, len(tokens) // engine.block) for at in cut)
        if kind == "stored" and start < end:
            index.push(origin, [batch([engine.stored(tokens, start, end)], engine.block)])
            if not model.stored(origin, tokens, start, end):
                work(index)  # events that come to the same slice might still say which block that is
        elif start < end:
            index.push(origin, [batch([engine.removed(tokens, start, end)], engine.block)])
            gone = {tuple(tokens[: (i + 1) * engine.block]) for i in range(start, end)}
            model.cache(origin, Tier.GPU).difference_update(gone)
    elif kind in ("page stored", "page removed"):
        tokens, tier = rest
        whole = {tuple(tokens[:end]) for end in range(PAGES[tier], len(tokens) + 1, PAGES[tier])}
        index.push(origin, [pages(PrefixKeys(tokens, SEED), PAGES[tier], tier, kind == "page stored")])
        cache = model.cache(origin, tier)
        if kind == "page stored":
            cache |= whole
        else:
            cache -= whole
    elif kind == "cleared":
        index.push(origin, [Cleared(tuple(rest[0]))])
        for tier in rest[0]:
            model.cache(origin, tier).clear()
    else:
        replace(index, model, origin)


def replace(index: Index, model: Model, origin: Origin) -> None:
    """All ranks of the replica leave and come back with nothing; a store is lost with the last who reach
    it."""
    replica = [other for other in BLOCKS if other.replica == origin.replica]
    stay = {STORES[other] for other in BLOCKS if other not in replica}
    index.detach(origin.replica)
    for gone in replica:
        for tier in (Tier.GPU, Tier.HOST, Tier.SSD):
            model.cache(gone, tier).clear()
        if STORES[gone] not in stay:
            model.cache(gone, Tier.SHARED).clear()
        attach(index, gone)


@settings(max_examples=150, deadline=None)
@given(st.lists(changes, min_size=12, max_size=40), st.lists(prompts, max_size=3))
def test_the_index_is_what_a_plain_model_is(changes, questions):
    index, model = Index(blocks=4096), Model()
    for origin in BLOCKS:
        attach(index, origin)
    for kind, *rest in changes:
        if kind == "work":
            for _ in range(rest[0]):
                index.work(0.0)
        else:
            change(index, model, kind, *rest)
    work(index)
    for tokens in [*TEXTS, *questions]:
        match = index.match(PrefixKeys(tokens, SEED))
        for i, origin in enumerate(match.origins):
            spans = model.spans(origin, tokens)
            assert list(match.spans()[i]) == spans
            by_tier = [sum(s.end - s.start for s in spans if s.tier is tier) for tier in Tier]
            assert match.tokens[i].tolist() == by_tier
