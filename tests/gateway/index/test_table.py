import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.index.table import KeyTable

# Few home buckets and the wrap at the end: keys are told apart by their low bits.
crowded = st.builds(lambda home, low: home << 61 | low, st.sampled_from([0, 1, 6, 7]), st.integers(1, 12))
changes = st.lists(st.tuples(st.booleans(), st.lists(crowded, max_size=12)), max_size=25)


def keys(values) -> np.ndarray:
    return np.array(list(values), np.uint64)


@settings(max_examples=300, deadline=None)
@given(changes)
def test_it_is_a_set_whose_slots_stay(changes):
    table = KeyTable(64)
    model: dict[int, int] = {}
    every = keys(home << 61 | low for home in (0, 1, 6, 7) for low in range(1, 13))
    for insert, values in changes:
        if insert:
            slots = table.insert(keys(values)).tolist()
            for value, slot in zip(values, slots, strict=True):
                assert model.setdefault(value, slot) == slot
        else:
            gone = {value: model.pop(value) for value in set(values) if value in model}
            table.remove(np.array(list(gone.values()), np.int64))
        assert table.count == len(model)
        assert len(set(model.values())) == len(model)
        assert table.find(every).tolist() == [model.get(int(key), table.absent) for key in every]


def test_a_full_table_finds_all_and_nothing_else():
    rng = np.random.default_rng(1)
    table = KeyTable(1 << 13)
    there, not_there = np.split(rng.integers(1, 2**64, 1 << 14, dtype=np.uint64), 2)
    slots = np.concatenate([table.insert(some) for some in np.split(there, 64)])
    assert (table.find(there) == slots).all()
    assert (table.keys[slots] == there).all()
    assert (table.find(not_there) == table.absent).all()
    table.remove(slots)
    assert table.count == 0
    assert not table._spills.any()
    assert not table._spilled
    assert (table.find(there) == table.absent).all()


def test_memory_is_taken_up_front():
    table = KeyTable(1000)
    before = table.nbytes
    table.insert(np.random.default_rng(1).integers(1, 2**64, 500, dtype=np.uint64))
    assert table.nbytes == before


def test_keys_that_their_bucket_has_no_room_for_are_kept_elsewhere():
    table = KeyTable(1000)
    candidates = np.arange(1, 400 * 400, dtype=np.uint64)
    alike = candidates[table._home(candidates) == 0][:400]
    for at in range(8):
        table.insert(alike[at : at + 1])
    table.insert(alike[8:])
    assert len(table._spilled) == 392
    assert table.room == 600
    assert len(set(table.find(alike).tolist())) == 400
    table.remove(table.find(alike[5:30]))
    assert table.room == 625
    assert len(table._spilled) == 392 - 22
    assert (table.find(alike[5:30]) == table.absent).all()
    assert (table.keys[table.find(alike[30:])] == alike[30:]).all()


def test_slots_are_dense_and_used_again():
    table = KeyTable(64)
    values = np.random.default_rng(1).integers(1, 2**64, 128, dtype=np.uint64)
    for _ in range(3):
        assert sorted(table.insert(values[:64]).tolist()) == list(range(64))
        assert table.room == 0
        table.remove(table.find(values[:64]))
        assert len(set(table.insert(np.repeat(values[64:], 3)[:64]).tolist())) == 22
        assert table.room == 64 - 22
        table.remove(table.find(values[64:86]))
        assert table.room == 64


def test_a_key_of_0_is_a_key_and_no_empty_place():
    """Whatever an engine sends: it must not take another key's slot."""
    table = KeyTable(64)
    assert table.find(keys([0])).tolist() == [table.absent]
    slots = table.insert(keys([0, 7]))
    assert table.count == 2
    table.remove(table.find(keys([0])))
    assert table.count == 1
    others = table.insert(keys(range(100, 163)))
    assert len({*others.tolist(), int(slots[1])}) == 64
