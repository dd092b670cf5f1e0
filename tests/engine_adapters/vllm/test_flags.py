import json

import pytest

from engine_adapters.errors import SettingsError
from engine_adapters.flags import Endpoints, refuse_clashes
from engine_adapters.vllm import flags


def test_the_gateway_can_watch() -> None:
    *switches, events = flags.watched(Endpoints("ipc:///a", "ipc:///b"))
    assert switches == ["--enable-prefix-caching", "--enable-prompt-tokens-details", "--enable-scale-out"]
    assert json.loads(events.removeprefix("--kv-events-config=")) == {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": "ipc:///a",
        "replay_endpoint": "ipc:///b",
        "topic": "kv",
    }


def test_settings_reach_the_connector() -> None:
    (flag,) = flags.tiered({"host": "8GiB"})
    transfer = json.loads(flag.removeprefix("--kv-transfer-config="))
    assert transfer["kv_role"] == "kv_both"
    extra = transfer["kv_connector_extra_config"]
    assert extra["host"] == "8GiB"
    assert extra["offload_prompt_only"] is False


@pytest.mark.parametrize(
    "flag",
    [
        "--kv-transfer-config",
        "--kv_transfer_config={}",
        "--kv-transfer-config.kv_role",
        "--kv-transfer",
        "--kv-events-config={}",
        "--kv-offloading-size",
        "--no-enable-prefix-caching",
        "--model=x",
    ],
)
def test_a_flag_that_would_undo_one_of_ours_is_refused(flag: str) -> None:
    with pytest.raises(SettingsError, match=r"clashes with what hpkv sets: \w+"):
        refuse_clashes(["--dtype=float32", flag], flags.CLASHES)


def test_all_other_flags_pass() -> None:
    refuse_clashes(
        [
            "--port",
            "1",
            "-tp",
            "2",
            "--max-model-len=auto",
            "--no-async-scheduling",
            "--kv-cache-dtype",
            "fp8",
        ],
        flags.CLASHES,
    )
