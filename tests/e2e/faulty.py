"""Runs inside vLLM: our connector, over stores and costs with faults (see `tests.e2e.disturbed`).

A request with `kv_transfer_params: {"hpkv_test_forget": n}` finds its page n gone from `host`;
`{"hpkv_test_pin_all": s}` leases all of `host` for s seconds.
"""

from typing import Any

from engine_adapters.vllm.inside.connector import HpkvConnector as Ours
from tests.e2e.disturbed import disturb_costs, disturb_levels


class HpkvConnector(Ours):
    def set_xfer_handshake_metadata_pp_aware(self, metadata: Any) -> None:
        super().set_xfer_handshake_metadata_pp_aware(metadata)
        disturb_levels(self._manager.tiers)
        disturb_costs(self._manager.tiers)

    def on_new_request(self, request: Any) -> None:
        super().on_new_request(request)
        wishes = request.kv_transfer_params or {}
        tiers, namespace = self._manager.tiers, self._manager.namespaces.of(None)
        if "hpkv_test_forget" in wishes:
            (slot,) = tiers.slots(namespace, [request.block_hashes[wishes["hpkv_test_forget"]]])
            with tiers._state.lock:
                tiers._state.host.remove([slot])
        if "hpkv_test_pin_all" in wishes:
            with tiers._state.lock:
                lease = tiers._state.leases.take(tiers._state.now() + wishes["hpkv_test_pin_all"])
                lease.add(tiers._state.host.book.live())
