import pytest

from gateway.tokenization import Difference, Parity, Verdict
from gateway.tokenization.results import token_ids

OURS = token_ids([1, 2, 3])


def test_nothing_is_known_before_a_check():
    assert Parity().verdict is Verdict.UNCHECKED
    assert not Parity().disagrees


@pytest.mark.parametrize(
    ("agreed", "verdict"),
    [([True, True], Verdict.AGREES), ([True, False], Verdict.DISAGREES), ([], Verdict.UNPROVEN)],
)
def test_a_check_at_start_settles_it(agreed: list[bool], verdict: Verdict):
    parity = Parity()
    parity.settle(agreed)
    assert parity.verdict is verdict


@pytest.mark.parametrize(("engines", "index"), [([1, 9, 3], 1), ([1, 2], 2), ([1, 2, 3, 4], 3), ([], 0)])
def test_the_first_difference_is_told_by_its_place(engines: list[int], index: int):
    parity = Parity()
    assert not parity.compare("case", OURS, token_ids(engines))
    parity.compare("later", OURS, token_ids([7]))
    assert parity.first == Difference("case", index, 3, len(engines))
    assert (parity.compared, parity.differed) == (2, 2)
    assert f"case: the prompts differ from token {index} on" in str(parity)


def test_one_live_difference_is_tolerated_and_two_are_not():
    parity = Parity()
    parity.settle([True])
    assert not parity.live(OURS, token_ids([1]))
    assert parity.verdict is Verdict.AGREES
    parity.live(OURS, OURS)
    parity.live(OURS, token_ids([2]))
    assert parity.disagrees


def test_live_agreement_clears_it_and_so_does_a_check():
    parity = Parity()
    parity.settle([True])
    for _ in range(2):
        parity.live(OURS, token_ids([1]))
    for _ in range(31):
        assert parity.disagrees
        parity.live(OURS, OURS)
    assert parity.verdict is Verdict.AGREES
    for _ in range(2):
        parity.live(OURS, token_ids([1]))
    parity.settle([True])
    assert parity.verdict is Verdict.AGREES


def test_live_agreement_doesnt_clear_what_a_check_found():
    parity = Parity()
    parity.settle([False])
    for _ in range(100):
        parity.live(OURS, OURS)
    assert parity.disagrees
