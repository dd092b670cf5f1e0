"""Copies between blocks and rows, in all layouts that an engine may have."""

import numpy as np
import pytest

from engine_adapters.vllm.inside import copies

BLOCKS, SIZE = 16, 64


def one_allocation(layers: int) -> list[copies.Bytes]:
    return list(np.random.default_rng(1).integers(-128, 127, (layers, BLOCKS, SIZE), np.int8))


def scattered(layers: int) -> list[copies.Bytes]:
    """Each where it happens to be; the second half twice as large."""
    sizes = [SIZE] * (layers // 2) + [2 * SIZE] * (layers - layers // 2)
    return [np.random.default_rng(i).integers(-128, 127, (BLOCKS, s), np.int8) for i, s in enumerate(sizes)]


def interleaved(layers: int) -> list[copies.Bytes]:
    whole = np.random.default_rng(1).integers(-128, 127, (BLOCKS, layers, SIZE), np.int8)
    return [whole[:, layer] for layer in range(layers)]


@pytest.mark.parametrize("layout", [one_allocation, scattered, interleaved])
@pytest.mark.parametrize("blocks_per_row", [1, 3])
def test_what_goes_down_comes_up(layout, blocks_per_row: int) -> None:  # type: ignore[no-untyped-def]
    layers = layout(5)
    width = sum(layer.shape[1] for layer in layers) * blocks_per_row
    memory = np.zeros((8, width + 100), np.int8)
    planes = copies.planes(layers, memory[:, 40 : 40 + width], blocks_per_row)
    blocks = [3, 7, 1, 15, 4, 0][: 2 * blocks_per_row]
    before = [layer[blocks].copy() for layer in layers]
    copies.to_host(planes, copies.places(blocks, [5, 2], 0, blocks_per_row))
    for layer in layers:
        layer[:] = 0
    targets = [9, 10, 2, 12, 5, 6][: 2 * blocks_per_row]
    copies.from_host(planes, copies.places(targets, [5, 2], 0, blocks_per_row))
    for layer, content in zip(layers, before, strict=True):
        assert (layer[targets] == content).all()
        assert not layer[[b for b in range(BLOCKS) if b not in targets]].any()
    assert not memory[:, :40].any()
    assert not memory[:, 40 + width :].any()
    assert not memory[[0, 1, 3, 4, 6, 7]].any()


def test_layers_in_one_allocation_are_copied_together() -> None:
    layers = one_allocation(5)
    assert len(copies.planes(layers, np.zeros((2, 5 * SIZE), np.int8), 1)) == 1


def test_a_page_of_which_the_engine_has_the_first_blocks() -> None:
    assert copies.places([8, 9, 4], [6, 2], first=5, blocks_per_row=4) == [(8, 6, 1), (9, 6, 2), (4, 6, 3)]
    assert copies.places([8, 9, 4], [6, 2], first=6, blocks_per_row=4) == [(8, 6, 2), (9, 6, 3), (4, 2, 0)]
