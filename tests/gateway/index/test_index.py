import numpy as np
import pytest

from cache.prefix import Extra, PrefixKeys, digest
from engine_adapters.events import BlockExtra, Cleared, Origin, Tier
from gateway.index import Index, IndexFullError, Lifetimes, Span, Store
from gateway.index.residency import SWEEP, Plane, Residency
from tests.gateway.index.engine import A, B, Engine, batch, held, pages, work

PROMPT = list(range(100, 200))  # six blocks of 16 and a rest


def tell(index: Index, origin: Origin, *events, block: int = 16) -> None:
    index.push(origin, [batch(events, block)])
    work(index)


def test_a_replica_holds_what_it_stored_and_no_other_does(index, engine):
    tell(index, A, engine.stored(PROMPT))
    assert held(index, engine.prompt(PROMPT), A) == 96
    assert held(index, engine.prompt(PROMPT), B) == 0
    assert held(index, engine.prompt(PROMPT[:50] + [7] * 50), A) == 48


def test_the_last_token_is_never_a_hit(index, engine):
    """Engines recompute at least one token, so of a prompt that ends with a block that block is computed."""
    tell(index, A, engine.stored(PROMPT))
    assert held(index, engine.prompt(PROMPT[:96]), A) == 80
    assert held(index, engine.prompt(PROMPT[:97]), A) == 96
    assert held(index, engine.prompt([]), A) == 0


def test_children_extend_parents_of_the_same_and_of_earlier_batches(index, engine):
    tell(index, A, engine.stored(PROMPT, 0, 1))
    tell(index, A, engine.stored(PROMPT, 1, 3), engine.stored(PROMPT, 3, 4), engine.stored(PROMPT, 4, 6))
    fork = [*PROMPT[:64], *range(500, 532)]
    tell(index, A, engine.stored(fork, 4, 5), engine.stored(fork, 5, 6))
    assert held(index, engine.prompt([*PROMPT, 1]), A) == 96
    assert held(index, engine.prompt([*fork, 1]), A) == 96


def test_a_gap_in_the_prefix_ends_the_match(index, engine):
    tell(index, A, engine.stored(PROMPT), engine.removed(PROMPT, 2, 3))
    assert held(index, engine.prompt(PROMPT), A) == 32


def test_the_last_change_to_a_block_counts(index, engine):
    tell(index, A, engine.stored(PROMPT), engine.removed(PROMPT), engine.stored(PROMPT, 0, 2))
    assert held(index, engine.prompt(PROMPT), A) == 32


def test_removal_counts_for_one_replica_and_one_tier_only(index, engine):
    for origin in (A, B):
        tell(index, origin, engine.stored(PROMPT), engine.stored(PROMPT, tier=Tier.HOST))
    tell(index, A, engine.removed(PROMPT, 1))
    match = index.match(engine.prompt(PROMPT))
    assert match.tokens.tolist() == [[16, 80, 0, 0], [96, 0, 0, 0]]


def test_unknown_parents_are_counted_and_known_blocks_keep_their_keys(index, engine):
    tell(index, A, engine.stored(PROMPT, 2))
    assert held(index, engine.prompt(PROMPT), A) == 0
    assert index.state().orphans == 4
    tell(index, B, engine.stored(PROMPT))
    tell(index, A, engine.stored(PROMPT, 2), engine.stored(PROMPT, 0, 2))
    assert held(index, engine.prompt(PROMPT), A) == 96
    assert index.state().orphans == 4


def test_a_match_is_split_into_spans_of_the_fastest_tier(index, engine):
    index.attach(A, pages={Tier.HOST: 16, Tier.SSD: 16})
    prompt = engine.prompt(PROMPT)
    index.push(A, [pages(PrefixKeys(PROMPT[:80], engine.seed), 16, Tier.HOST), pages(prompt, 16, Tier.SSD)])
    tell(index, A, engine.stored(PROMPT, 0, 2))
    match = index.match(prompt)
    assert match.tokens[0].tolist() == [32, 48, 16, 0]
    assert match.leading().tolist() == [96, 0]
    assert match.spans() == [
        (Span(Tier.GPU, 0, 32), Span(Tier.HOST, 32, 80), Span(Tier.SSD, 80, 96)),
        (),
    ]


def test_gpu_blocks_behind_a_gap_are_of_no_use_but_lower_tiers_are(index, engine):
    """An engine takes its own cache from the start of the prompt only."""
    index.attach(A, pages={Tier.HOST: 16})
    tell(index, A, engine.stored(PROMPT), engine.removed(PROMPT, 1, 2))
    index.push(A, [pages(PrefixKeys(PROMPT[:48], engine.seed), 16, Tier.HOST)])
    work(index)
    assert index.match(engine.prompt(PROMPT)).tokens[0].tolist() == [16, 32, 0, 0]


def test_tiers_and_replicas_of_other_page_sizes_share_the_prompts_one_pass(index, engine):
    index.attach(A, pages={Tier.SSD: 48})
    index.push(A, [pages(engine.prompt(PROMPT), 48, Tier.SSD)])
    tell(index, A, engine.stored(PROMPT, 0, 1))
    tell(index, B, Engine(block=24).stored(PROMPT), block=24)
    match = index.match(engine.prompt(PROMPT))
    assert match.tokens.tolist() == [[16, 0, 80, 0], [96, 0, 0, 0]]
    assert match.spans()[0] == (Span(Tier.GPU, 0, 16), Span(Tier.SSD, 16, 96))


def test_parts_of_blocks_are_no_pages(index, engine):
    tell(index, A, Engine(block=8).stored(PROMPT[:16], 0, 1), block=8)
    tell(index, A, engine.stored(PROMPT), block=16)
    tell(index, A, Engine(block=8).stored([*PROMPT[:8], *[3] * 8], 0, 1), block=8)
    assert held(index, engine.prompt(PROMPT), A) == 96
    assert held(index, engine.prompt([*PROMPT[:8], 5, 6]), A) == 0


def test_salts_and_loras_keep_prompts_apart(index):
    """Two tenants' salts, and a LoRA named like a salt: no match across them."""
    engines = [Engine(salt="x"), Engine(salt="y"), Engine(lora="x"), Engine()]
    for i, one in enumerate(engines):
        tell(index, A, one.stored(PROMPT))
        found = [held(index, other.prompt(PROMPT), A) for other in engines]
        assert found == [96] * (i + 1) + [0] * (3 - i)


def test_an_image_counts_from_its_place_on(index, engine):
    _, tier, parent, seed, _, tokens = engine.stored(PROMPT)
    names = engine.hashes(PROMPT, {37: "cat"})
    cat = BlockExtra(block=2, offset=5, digest=digest("cat"))
    index.push(A, [batch([(True, tier, parent, seed, names, tokens)], extras=(cat,))])
    work(index)
    with_cat = PrefixKeys(PROMPT, engine.seed, [Extra(37, digest("cat"))])
    assert held(index, with_cat, A) == 96
    assert held(index, engine.prompt(PROMPT), A) == 32
    assert held(index, PrefixKeys(PROMPT, engine.seed, [Extra(36, digest("cat"))]), A) == 32


def test_ranks_of_one_replica_are_caches_of_their_own(index, engine):
    index.attach(Origin("a", 1))
    tell(index, Origin("a", 1), engine.stored(PROMPT))
    assert held(index, engine.prompt(PROMPT), A) == 0
    assert held(index, engine.prompt(PROMPT), Origin("a", 1)) == 96
    index.detach("a")
    assert index.match(engine.prompt(PROMPT)).origins == (B,)


def test_shared_storage_is_of_all_who_reach_it_in_their_namespace(engine):
    index = Index(blocks=4096)
    for name, store in {"a": Store("s", "n"), "b": Store("s", "n"), "c": Store("s", "m"), "d": None}.items():
        index.attach(Origin(name), pages={Tier.SHARED: 16}, store=store)
    prompt = engine.prompt(PROMPT)
    index.push(A, [pages(prompt, 16, Tier.SHARED)])
    work(index)
    known = index.state().blocks
    index.push(Origin("d"), [pages(engine.prompt(PROMPT[::-1]), 16, Tier.SHARED)])  # it has no store
    work(index)
    assert index.state().blocks == known
    assert index.match(prompt).tokens[:, Tier.SHARED].tolist() == [96, 96, 0, 0]
    index.detach("a")
    work(index)
    assert held(index, prompt, B) == 96
    index.push(B, [pages(prompt, 16, Tier.SHARED, stored=False)])
    work(index)
    assert held(index, prompt, B) == 0


def test_a_store_is_forgotten_with_the_last_replica_that_reached_it(engine):
    index = Index(blocks=4096)
    store = Store("s", "n")
    index.attach(A, pages={Tier.SHARED: 16}, store=store)
    index.push(A, [pages(engine.prompt(PROMPT), 16, Tier.SHARED)])
    work(index)
    index.detach("a")
    work(index)
    assert index.state().blocks == 0
    index.attach(B, pages={Tier.SHARED: 16}, store=Store("other", "n"))
    assert held(index, engine.prompt(PROMPT), B) == 0


def test_a_replica_with_another_store_is_another_replica(engine):
    index = Index(blocks=4096)
    index.attach(A, pages={Tier.SHARED: 16}, store=Store("s", "n"))
    tell(index, A, engine.stored(PROMPT))
    index.attach(A, pages={Tier.SHARED: 16}, store=Store("s", "m"))
    assert held(index, engine.prompt(PROMPT), A) == 0


def test_saying_more_of_a_replica_forgets_nothing(engine):
    index = Index(blocks=4096)
    index.attach(A)
    tell(index, A, Engine(block=32).stored(PROMPT), block=32)
    index.attach(A, pages={Tier.HOST: 16})
    index.push(A, [pages(engine.prompt(PROMPT), 16, Tier.HOST)])
    work(index)
    assert index.match(engine.prompt(PROMPT[:80])).tokens.tolist() == [[64, 0, 0, 0]]
    assert index.match(engine.prompt(PROMPT[:81])).tokens.tolist() == [[64, 16, 0, 0]]


def test_a_replica_that_gets_its_first_store_keeps_what_it_said(engine):
    """Its agent answers after its events began."""
    index = Index(blocks=4096)
    index.attach(A)
    tell(index, A, engine.stored(PROMPT, 0, 3))
    index.attach(A, pages={Tier.SHARED: 16}, store=Store("s", "n"))
    index.push(A, [pages(engine.prompt(PROMPT), 16, Tier.SHARED)])
    work(index)
    assert index.match(engine.prompt(PROMPT)).tokens.tolist() == [[48, 0, 0, 48]]


def test_predicted_blocks_let_a_bursts_siblings_meet(index, engine):
    """Siblings of one burst race: the first one's choice is known before its first event."""
    prompt = engine.prompt(PROMPT)
    index.predict(prompt, B, now=0.0)
    assert held(index, engine.prompt([*PROMPT[:64], *[1] * 40]), B) == 64
    assert held(index, prompt, A) == 0


def test_a_long_prediction_is_written_in_slices(engine):
    index = Index(blocks=1 << 14)
    index.attach(A, sends_events=False)
    prompt = engine.prompt(list(range(16 * 3000 + 1)))
    index.predict(prompt, A, now=0.0)
    assert held(index, prompt, A) == 1024 * 16
    assert index.backlog == 3000 - 1024
    work(index)
    assert held(index, prompt, A) == 3000 * 16
    assert index.backlog == 0


def test_predictions_that_no_event_confirms_end(engine):
    index = Index(blocks=4096, lifetimes=Lifetimes(predicted_s=60, silent_s=1e9))
    index.attach(A)
    work(index, 0.0)
    index.predict(engine.prompt(PROMPT), A, now=0.0)
    tell(index, A, engine.stored(PROMPT, 0, 2))
    for now in (10, 29):
        work(index, now)
        assert held(index, engine.prompt(PROMPT), A) == 96
    for now in (31, 62):
        work(index, now)
    assert held(index, engine.prompt(PROMPT), A) == 32


def test_approximate_entries_of_a_replica_without_events_last_while_renewed(engine):
    index = Index(blocks=4096, lifetimes=Lifetimes(predicted_s=60, approximate_s=600))
    index.attach(A, sends_events=False)
    index.attach(B)
    other = PROMPT[::-1]
    index.predict(engine.prompt(other), A, now=0.0)
    for now in range(0, 3000, 100):
        index.predict(engine.prompt(PROMPT), A, now=now)
        work(index, now)
        assert held(index, engine.prompt(PROMPT), A) == 96
    assert held(index, engine.prompt(other), A) == 0
    assert index.state().silent == ()


def test_a_removal_ends_a_prediction_too(index, engine):
    index.predict(engine.prompt(PROMPT), A, now=0.0)
    tell(index, A, engine.stored(PROMPT), engine.removed(PROMPT, 3))
    assert held(index, engine.prompt(PROMPT), A) == 48


def test_shared_residency_has_a_lifetime(engine):
    index = Index(blocks=4096, lifetimes=Lifetimes(shared_s=100))
    index.attach(A, pages={Tier.SHARED: 16}, store=Store("s", "n"))
    work(index, 0.0)
    index.push(A, [pages(engine.prompt(PROMPT), 16, Tier.SHARED)])
    for now, there in ((1, 96), (51, 96), (102, 0)):
        work(index, now)
        assert held(index, engine.prompt(PROMPT), A) == there


def test_restarted_engines_blocks_are_forgotten_and_ssd_kept(index, engine):
    """A restarted engine's blocks kept: its source says Cleared(gpu, host), and what follows is new."""
    index.attach(A, pages={Tier.HOST: 16, Tier.SSD: 16})
    prompt = engine.prompt(PROMPT)
    tell(index, A, engine.stored(PROMPT))
    index.push(A, [pages(prompt, 16, Tier.HOST), pages(PrefixKeys(PROMPT[:48], engine.seed), 16, Tier.SSD)])
    tell(index, B, engine.stored(PROMPT))
    index.push(A, [Cleared((Tier.GPU, Tier.HOST)), batch([engine.stored(PROMPT, 0, 1)])])
    assert index.match(prompt).tokens.tolist() == [[0, 0, 48, 0], [96, 0, 0, 0]]  # at once, before any work
    work(index)
    assert index.match(prompt).tokens.tolist() == [[16, 0, 32, 0], [96, 0, 0, 0]]


def test_all_blocks_cleared_is_heeded_for_gpu_only(index, engine):
    index.attach(A, pages={Tier.HOST: 16})
    index.push(A, [batch([engine.stored(PROMPT)]), pages(engine.prompt(PROMPT), 16, Tier.HOST)])
    index.push(A, [Cleared((Tier.GPU,))])
    work(index)
    assert index.match(engine.prompt(PROMPT)).tokens[0].tolist() == [0, 96, 0, 0]


def test_a_restart_with_another_block_size_is_read_on_its_grid(index, engine):
    tell(index, A, engine.stored(PROMPT))
    index.push(A, [Cleared((Tier.GPU, Tier.HOST))])
    tell(index, A, Engine(block=8).stored(PROMPT), block=8)
    assert held(index, engine.prompt(PROMPT), A) == 96
    assert held(index, engine.prompt(PROMPT[:30]), A) == 24


def test_removed_endpoints_entries_are_gone_and_their_place_is_used_again(engine):
    index = Index(blocks=4096, caches=64)
    for i in range(64):
        index.attach(Origin(f"r{i}"))
    with pytest.raises(IndexFullError, match="raise"):
        index.attach(Origin("late"))
    tell(index, Origin("r5"), engine.stored(PROMPT))
    index.detach("r5")
    assert Origin("r5") not in index.match(engine.prompt(PROMPT)).origins
    work(index)
    index.attach(Origin("late"))
    tell(index, Origin("late"), engine.stored(PROMPT, 0, 1))
    assert held(index, engine.prompt(PROMPT), Origin("late")) == 16
    assert index.state().blocks == 1


def test_events_of_a_replica_that_left_are_dropped(index, engine):
    index.push(A, [batch([engine.stored(PROMPT)])])
    index.detach("a")
    index.push(A, [batch([engine.stored(PROMPT)])])
    index.predict(engine.prompt(PROMPT), A, now=0.0)
    work(index)
    assert index.state().blocks == 0


def test_more_than_64_caches_have_rows_of_several_words(engine):
    index = Index(blocks=4096, caches=130)
    stores = [Store(f"s{i % 70}", "n") for i in range(130)]
    for i in range(130):
        index.attach(Origin(f"r{i}"), pages={Tier.SHARED: 16}, store=stores[i])
    for i in (0, 63, 64, 129):
        tell(index, Origin(f"r{i}"), engine.stored(PROMPT, 0, 1 + i % 5))
    index.push(Origin("r65"), [pages(engine.prompt(PROMPT), 16, Tier.SHARED)])
    work(index)
    match = index.match(engine.prompt(PROMPT))
    gpu = {i: int(n) for i, n in enumerate(match.tokens[:, Tier.GPU]) if n}
    assert gpu == {0: 16, 63: 64, 64: 80, 129: 80}
    assert match.tokens[:, Tier.SHARED].nonzero()[0].tolist() == [65]
    assert match.spans()[64:66] == [(Span(Tier.GPU, 0, 80),), (Span(Tier.SHARED, 0, 96),)]


def test_silence_after_traffic_is_visible_and_believed_for_a_while_only(engine):
    """Publishers missing, silently: a replica that must send events and doesn't."""
    index = Index(blocks=4096, lifetimes=Lifetimes(predicted_s=60, approximate_s=600, silent_s=30))
    index.attach(A)
    work(index, 0.0)
    index.push(A, [batch([engine.stored(PROMPT)])])
    work(index, 1.0)
    index.predict(engine.prompt(PROMPT), A, now=2.0)  # all there: it need not cause an event
    work(index, 100.0)
    assert index.state().silent == ()
    index.predict(engine.prompt(PROMPT[::-1]), A, now=100.0)
    work(index, 120.0)
    assert index.state().silent == ()
    index.push(A, [pages(engine.prompt([7] * 50), 16, Tier.SSD), Cleared((Tier.HOST,))])  # its agent speaks
    work(index, 131.0)
    assert index.state().silent == (A,)
    assert held(index, engine.prompt(PROMPT), A) == 96
    work(index, 740.0)
    assert held(index, engine.prompt(PROMPT), A) == 0
    index.push(A, [batch([engine.stored(PROMPT)])])
    work(index, 741.0)
    assert index.state().silent == ()
    assert held(index, engine.prompt(PROMPT), A) == 96


def test_memory_is_bounded_and_the_oldest_go_first(index, engine):
    """Trees that never evict: a stream without removals, of ten times what fits."""
    before = index.state().bytes
    rng = np.random.default_rng(3)
    prompts = [rng.integers(0, 1000, 20 * 16 + 1).tolist() for _ in range(2048)]
    kept = prompts[0]
    for tokens in prompts:
        index.push(A, [batch([engine.stored(tokens)])])
        index.predict(engine.prompt(kept), A, now=0.0)
        work(index)
    state = index.state()
    assert state.blocks <= 4096
    assert state.hashes <= 4096 * 3 // 2
    assert state.evicted >= 2048 * 20 - 4096
    assert state.bytes == before
    assert held(index, engine.prompt(kept), A) == 320
    recent = [held(index, engine.prompt(tokens), A) for tokens in prompts[-100:]]
    old = [held(index, engine.prompt(tokens), A) for tokens in prompts[1:1000]]
    assert np.mean(recent) > 300
    assert np.mean(old) < 5


def test_engines_with_hashes_of_their_own_meet_in_one_entry(index):
    """Hashes depend on the process: other hash seeds, the same prefixes."""
    tell(index, A, Engine(name="one").stored(PROMPT))
    tell(index, B, Engine(name="other").stored(PROMPT))
    assert index.state().blocks == 6
    assert index.match(Engine().prompt(PROMPT)).leading().tolist() == [96, 96]


def test_hashes_of_blocks_that_are_nowhere_make_room(index):
    rng = np.random.default_rng(4)
    for i in range(40):
        engine = Engine(name=str(i))
        tokens = rng.integers(0, 1000, 400 * 16).tolist()
        tell(index, A, engine.stored(tokens))
        assert held(index, engine.prompt([*tokens, 1]), A) == 6400
        tell(index, A, engine.removed(tokens))
    state = index.state()
    assert (state.blocks, state.evicted, state.orphans) == (0, 0, 0)
    assert state.hashes <= 4096 * 3 // 2


def test_more_names_than_fit_cost_the_oldest_blocks(index):
    """Engines of many kinds, each with its own name for every block."""
    rng = np.random.default_rng(5)
    prompts = [rng.integers(0, 1000, 100 * 16 + 1).tolist() for _ in range(25)]
    for name in "abc":
        for tokens in prompts:
            tell(index, A, Engine(name=name).stored(tokens))
    state = index.state()
    assert state.hashes <= 4096 * 3 // 2
    assert 0 < state.evicted < 2500
    assert held(index, Engine().prompt(prompts[-1]), A) == 1600


def test_work_comes_in_slices(index, engine):
    index.push(A, [batch([engine.stored([i] * 1600)]) for i in range(20)])
    assert index.backlog == 2000
    assert index.work(0.0)
    assert 900 <= index.backlog <= 2000 - 512
    work(index)
    assert index.backlog == 0
    assert SWEEP <= 1 << 13


def test_of_a_storm_of_clearings_only_the_last_visits_the_rows(engine):
    index = Index(blocks=8 * SWEEP)
    for origin in (A, B):
        index.attach(origin)
    for i in range(100):
        index.push(A, [batch([engine.stored([i] * 64)]), Cleared((Tier.GPU,))])
    index.push(A, [batch([engine.stored(PROMPT)])])
    index.push(B, [batch([engine.stored(PROMPT)])])
    slices = 1
    while index.work(0.0):
        slices += 1
    assert slices < 100 + 100 + 8 + 2
    assert index.match(engine.prompt(PROMPT)).leading().tolist() == [96, 96]
    assert index.state().blocks == 6


def test_ages_are_told_apart_for_years():
    """Ten thousand changes a second, for a year."""
    residency = Residency(4096, 64)
    residency._stamp = 10_000 * 3600 * 24 * 365
    for keys in (np.array([5, 6], np.uint64), np.array([7, 8], np.uint64)):
        residency.set(keys, np.array([16, 2**32 - 1]), Plane.GPU, 0)
    rows = residency.find(np.array([8, 7, 6, 5], np.uint64))
    assert residency.oldest(rows, 1).tolist() == [2]
    assert sorted(residency.oldest(rows, 2).tolist()) == [2, 3]
    assert sorted(residency.oldest(rows, 3).tolist()) == [0, 2, 3]


def test_without_replicas_nobody_holds_anything(engine):
    """The last may leave while a prompt is tokenized."""
    match = Index(blocks=4096).match(engine.prompt(PROMPT))
    assert match.origins == ()
    assert match.tokens.shape == (0, 4)


def test_what_a_silent_replica_said_is_forgotten_however_slow_the_clearing(engine):
    index = Index(blocks=8 * SWEEP)
    index.attach(A)
    tell(index, A, engine.stored(PROMPT))
    index.predict(engine.prompt(PROMPT[::-1]), A, now=0.0)
    for now in (32.0, 64.0):
        work(index, now)
    for second in range(30):
        index.work(700.0 + second)
    assert not index.work(729.0)
    assert held(index, engine.prompt(PROMPT), A) == 0
    assert index.state().blocks == 0
