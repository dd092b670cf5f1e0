import msgspec
import numpy as np
import pytest

from engine_adapters import wire
from engine_adapters.errors import WireError


def test_an_agents_sockets_are_neighbours() -> None:
    assert wire.endpoints("tcp://127.0.0.1:5600") == (
        "tcp://127.0.0.1:5600",
        "tcp://127.0.0.1:5601",
        "tcp://127.0.0.1:5602",
    )
    assert wire.endpoints("tcp://*:5600", rank=2).replay == "tcp://*:5608"
    assert wire.endpoints("ipc:///run/kv/a").events == "ipc:///run/kv/a.events"
    assert wire.endpoints("ipc:///run/kv/a", rank=1).control == "ipc:///run/kv/a.1"


def test_a_call_comes_back_as_it_was_sent() -> None:
    call = wire.Prefetch(tokens=wire.pack_tokens([1, 2, 70000]), salt="s", seconds=2.5, computed=16)
    sent = msgspec.msgpack.encode(wire.Envelope(wire.VERSION, 7, msgspec.Raw(msgspec.msgpack.encode(call))))
    envelope = msgspec.msgpack.decode(sent, type=wire.Envelope)
    back = msgspec.msgpack.decode(envelope.body, type=wire.Call)
    assert (envelope.version, envelope.number, back) == (wire.VERSION, 7, call)
    assert isinstance(back, wire.Prefetch)
    assert wire.tokens_of(back.tokens).tolist() == [1, 2, 70000]


@pytest.mark.parametrize("tokens", [[-1], [1 << 32]])
def test_ids_that_are_no_u32_are_not_packed(tokens: list[int]) -> None:
    with pytest.raises(OverflowError):
        wire.pack_tokens(tokens)


def test_columns_that_dont_fit_are_refused() -> None:
    keys, ends = np.arange(3, dtype="<u8").tobytes(), np.arange(3, dtype="<u4").tobytes()
    assert wire.pages_of(keys, ends)[0].tolist() == [0, 1, 2]
    for bad in ((keys[:-1], ends), (keys, ends[:-1]), (keys, ends[:-4])):
        with pytest.raises(WireError):
            wire.pages_of(*bad)
