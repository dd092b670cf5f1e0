"""vLLM's offloading connector over our tiers: plan the whole prompt first, then let vLLM ask page by page."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorBase_V1, KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
)
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import build_offloading_config
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import OffloadingConnectorScheduler
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker import OffloadingConnectorWorker
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request

from cache.prefix import Extra, digest
from engine_adapters.agent import door
from engine_adapters.outside import Outside
from engine_adapters.vllm.settings import load_settings

from . import identity, logs
from .manager import Manager
from .namespaces import Lora
from .requests import Facts
from .spec import HpkvSpec

SPEC = {"spec_name": HpkvSpec.__name__, "spec_module_path": HpkvSpec.__module__}
"""By these vLLM finds our metrics."""


class HpkvConnector(OffloadingConnector):
    """The scheduler's and the worker's end of the tiers."""

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        """Raises SettingsError."""
        # Not through vLLM's own constructor: it makes a spec of a name, and ours wants the configuration.
        KVConnectorBase_V1.__init__(self, vllm_config, role, kv_cache_config)
        logs.join()
        transfer = vllm_config.kv_transfer_config
        settings = load_settings(transfer.kv_connector_extra_config, os.environ)
        offloading = build_offloading_config(vllm_config, kv_cache_config)
        self._vllm = vllm_config, kv_cache_config
        self._canonical_layout = False
        self._spec = HpkvSpec(offloading, vllm_config, kv_cache_config, settings, _memory(os.environ))
        self._forgotten: dict[int, int] = {}
        self._preemptions: dict[str, int] = {}
        self._outside: Outside | None = None
        self.connector_scheduler = self.connector_worker = None
        if role is KVConnectorRole.WORKER:
            self.connector_worker = OffloadingConnectorWorker(self._spec, vllm_config, kv_cache_config)

    # -- start ------------------------------------------------------------------------------------

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """Called before the model is loaded: the place to refuse settings. Raises SettingsError."""
        door.check(load_settings(extra_config, os.environ).agent)
        return bool(super().requires_piecewise_for_cudagraph(extra_config))

    @classmethod
    def build_prom_metrics(cls, vllm_config: VllmConfig, *args: Any) -> KVConnectorPromMetrics:
        """Ours among vLLM's."""
        vllm_config.kv_transfer_config.kv_connector_extra_config.update(SPEC)
        return super().build_prom_metrics(vllm_config, *args)

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata:
        """In a worker: what the scheduler can't know."""
        return identity.worker(*self._vllm, self._spec.rank_bytes)

    def set_xfer_handshake_metadata_pp_aware(
        self, metadata: dict[tuple[int, int], KVConnectorHandshakeMetadata]
    ) -> None:
        """In the scheduler: all workers have started, the tiers can be opened. Raises SettingsError."""
        workers = [one for one in metadata.values() if isinstance(one, identity.Worker)]
        self._spec.manager(workers)
        self.connector_scheduler = OffloadingConnectorScheduler(self._spec, *self._vllm)
        self._outside = self._spec.outside()

    def shutdown(self) -> None:
        """Who asks from outside goes before the tiers do."""
        if self._outside is not None:
            self._outside.close()
        super().shutdown()

    # -- requests ---------------------------------------------------------------------------------

    @property
    def _manager(self) -> Manager:
        return self._spec.get_manager()

    def on_new_request(self, request: Request) -> None:
        """Take what vLLM's manager interface doesn't carry: tokens, salt, LoRA, images."""
        lora = request.lora_request
        changing = lora is not None and lora.load_inplace
        if request.prompt_embeds is None and not changing:  # those have no tokens or weights to be named by
            facts = Facts(
                tokens=request.all_token_ids,
                salt=request.cache_salt,
                lora=lora.lora_name if lora else None,
                extras=tuple(
                    Extra(image.mm_position.offset, digest(image.identifier)) for image in request.mm_features
                ),
            )
            named = Lora(lora.lora_name, lora.lora_path, lora.lora_int_id) if lora else None
            self._manager.admit(request.request_id, facts, named)
        super().on_new_request(request)

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Plan, and let vLLM read the plan; (None, False) while pages are on their way.

        A reset may preempt a request between two steps. It waits for the end of the step in which that is
        told: vLLM takes all copies of such a request for stores then, and a load would end the engine.
        """
        if request.num_preemptions > self._preemptions.get(request.request_id, 0):
            return None, False
        if not request.skip_reading_prefix_cache:
            hashes = self._spec.page_tokens // self._spec.tokens_per_hash
            keys = request.block_hashes[hashes - 1 :: hashes]
            if not self._manager.plan(request.request_id, keys, num_computed_tokens):
                return None, False
        found: tuple[int | None, bool] = super().get_num_new_matched_tokens(request, num_computed_tokens)
        return found

    # -- steps ------------------------------------------------------------------------------------

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        """A step begins."""
        for request in scheduler_output.preempted_req_ids or ():
            self._preemptions[request] = self._preemptions.get(request, 0) + 1
        for request in scheduler_output.finished_req_ids:
            self._preemptions.pop(request, None)
        counts = scheduler_output.num_scheduled_tokens.values()
        self._manager.prefills.begin(sum(count for count in counts if count > 1))
        return super().build_connector_meta(scheduler_output)

    def get_kv_connector_stats(self) -> KVConnectorStats | None:
        """In the scheduler, called once when a step has ended."""
        if self.connector_scheduler is not None:
            self._manager.stepped()
        return super().get_kv_connector_stats()

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """Copies have ended."""
        about = connector_output.kv_connector_worker_meta
        if isinstance(about, OffloadingWorkerMetadata):
            self._learn(about)
        super().update_connector_output(connector_output)

    def reset_cache(self) -> bool | None:
        """Forget `host`; what vLLM forgets of its copies goes on until the workers have said so."""
        ranks = self._vllm[0].parallel_config.world_size
        for job, status in self.scheduler._jobs.items():
            self._forgotten[job] = status.pending_count or ranks
        done: bool | None = super().reset_cache()
        self._let_go()
        return done

    def _learn(self, about: OffloadingWorkerMetadata) -> None:
        load = about.transfer_stats.load
        pages = load.bytes // self._spec.rank_bytes
        if pages:
            self._manager.tiers.saw_copy(pages, load.time)
        for job, count in about.completed_jobs.items():
            if job in self._forgotten:
                self._forgotten[job] -= count
        self._let_go()

    def _let_go(self) -> None:
        """Once no forgotten copy is under way, its slots are free."""
        self._forgotten = {job: left for job, left in self._forgotten.items() if left > 0}
        if not self._forgotten:
            self._manager.flushed()


def _memory(environ: Mapping[str, str]) -> Path:
    """The file that remembers what weights are called."""
    caches = environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(caches) / "hpkv" / "weights.json"
