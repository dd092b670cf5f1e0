import numpy as np
import pytest

from cache.keys import Namespace, Page
from cache.testing import SPACE, key, page
from cache.tiers.slots import ABSENT, Book, Entry, Recalled

OTHER = Namespace(b"o" * 16)


def recalled(*found: tuple[int, Namespace, Page, int, int]) -> Recalled:
    """(slot, namespace, page, used, sequence) of each."""
    slots, spaces, pages, used, sequences = zip(*found, strict=True)
    return Recalled(
        np.array(slots),
        spaces,
        [page.key for page in pages],
        np.array([page.prefix_key for page in pages], np.uint64),
        np.array([page.end_token for page in pages], np.uint32),
        np.array([page.tenant for page in pages], np.uint64),
        np.array(used, np.uint64),
        np.array(sequences, np.uint64),
    )


def put(book: Book, number: int, used: int = 1) -> int:
    slot = book.take(SPACE, page(number))
    book.publish(slot, used)
    return slot


def test_a_page_is_invisible_until_published() -> None:
    book = Book(2)
    slot = book.take(SPACE, page(1))
    assert book.find(SPACE, [key(1)]) == [ABSENT]
    assert book.filling(SPACE, key(1))
    book.publish(slot, used=1)
    assert book.find(SPACE, [key(1), key(2)]) == [slot, ABSENT]
    assert book.has(SPACE, [key(2), key(1)]) == [False, True]
    assert book.find(OTHER, [key(1)]) == [ABSENT]
    assert book.entry(slot) == (SPACE, page(1), slot)


def test_slots_run_out_and_come_back() -> None:
    book = Book(2)
    first, second = put(book, 1), put(book, 2)
    assert book.take(SPACE, page(3)) == ABSENT
    book.remove([first])
    assert book.take(SPACE, page(3)) == first
    book.abandon(first)
    assert (book.taken, len(book)) == (1, 1)
    book.remove([second])
    book.audit()


def test_a_removed_page_keeps_its_slot_while_held() -> None:
    book = Book(1)
    slot = put(book, 1)
    book.hold([slot])
    book.remove([slot])
    assert book.find(SPACE, [key(1)]) == [ABSENT]
    assert book.take(SPACE, page(2)) == ABSENT
    book.audit()
    book.unhold([slot])
    assert book.take(SPACE, page(2)) == slot


def test_a_held_filler_that_gives_up_frees_its_slot_once() -> None:
    book = Book(1)
    slot = book.take(SPACE, page(1))
    book.hold([slot])
    book.abandon(slot)
    assert book.take(SPACE, page(2)) == ABSENT
    book.unhold([slot])
    assert (book.taken, book.held) == (0, 0)
    book.audit()


def test_shunned_slots_are_given_out_last() -> None:
    book = Book(3)
    slots = [book.take(SPACE, page(n)) for n in range(3)]
    book.abandon(slots[0])
    book.abandon(slots[1])
    book.abandon(slots[2], shun=True)
    assert [book.take(SPACE, page(n)) for n in range(3, 6)] == [slots[1], slots[0], slots[2]]


def test_a_book_opens_slots_as_its_tier_grows() -> None:
    book = Book(3, opened=1)
    put(book, 1)
    assert book.take(SPACE, page(2)) == ABSENT
    book.opened += 2
    assert book.take(SPACE, page(2)) != ABSENT


def test_retired_slots_are_not_given_out() -> None:
    book = Book(2)
    slots = [put(book, 1), put(book, 2)]
    for slot in slots:
        book.remove([slot])
    book.retire([slots[0]])
    assert (book.take(SPACE, page(3)), book.take(SPACE, page(4))) == (slots[1], ABSENT)
    assert book.taken == 1
    book.restore([slots[0]])
    assert book.take(SPACE, page(4)) == slots[0]


def test_recalled_pages_are_live_and_the_rest_is_free() -> None:
    book = Book(4, opened=3)
    found = [
        recalled((0, OTHER, page(1), 4, 7), (1, SPACE, page(1), 9, 6)),
        recalled((2, SPACE, page(1), 5, 8)),
    ]
    book.recall(found)
    assert (book.find(SPACE, [key(1)]), book.find(OTHER, [key(1)])) == ([2], [0])
    assert book.victims(3) == [0, 2]
    assert (book.take(SPACE, page(9)), book.take(SPACE, page(8))) == (1, ABSENT)
    book.audit()


def test_a_later_record_of_the_same_page_replaces_the_earlier() -> None:
    book = Book(2)
    book.recall([recalled((0, SPACE, page(1), 1, 2), (1, SPACE, page(1), 2, 1))])
    assert book.find(SPACE, [key(1)]) == [0]
    assert (len(book), book.taken) == (1, 1)
    book.audit()


def test_what_a_restart_found_is_what_was_stored() -> None:
    book = Book(4, opened=3)
    book.recall([recalled((0, SPACE, page(7, tenant=9), 5, 1), (2, OTHER, page(8), 3, 2))])
    assert list(map(book.entry, book.live())) == [
        Entry(SPACE, page(7, tenant=9), 0),
        Entry(OTHER, page(8), 2),
    ]
    assert book.used(3).tolist() == [5, 0, 3]
    book.hold([2])
    assert book.victims(2) == [0]
    book.unhold([2])
    assert book.take(SPACE, page(1)) == 1
    book.audit()


def test_entries_of_a_tenant() -> None:
    book = Book(4)
    for number in range(4):
        book.publish(book.take(SPACE, page(number, tenant=number % 2)), used=1)
    assert [book.entry(slot).page.key for slot in book.live(1)] == [key(1), key(3)]
    assert len(book.live()) == 4


def test_an_audit_finds_a_wrong_book() -> None:
    book = Book(4)
    put(book, 1)
    book._free.append(0)
    with pytest.raises(AssertionError, match="two states"):
        book.audit()


def test_many_pages_leave_at_once_and_what_is_held_keeps_its_slot() -> None:
    book = Book(8)
    slots = [book.take(space, page(n)) for n in range(3) for space in (SPACE, OTHER)]
    for slot in slots:
        book.publish(slot, used=1)
    book.hold(slots[:2])
    assert book.remove(slots[:5]) == [(1, 16), (1, 16), (2, 32), (2, 32), (3, 48)]
    assert (len(book), book.taken, book.live()) == (1, 3, slots[5:])
    book.unhold(slots[:2])
    assert book.taken == 1
    assert book.remove([]) == []
    book.audit()
