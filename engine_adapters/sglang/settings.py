"""What is SGLang's own about the settings of an engine's inside."""

from collections.abc import Mapping
from typing import Any

from engine_adapters.errors import SettingsError
from engine_adapters.settings import Settings, variables_of
from engine_adapters.settings import load_settings as load

THRESHOLD_VARIABLE = "SGLANG_HPKV_TOKEN_THRESHOLD"

ENGINE_KEYS = frozenset(
    {
        "backend_name",
        "module_path",
        "class_name",
        "interface_v1",
        "prefetch_threshold",
        "prefetch_timeout_base",
        "prefetch_timeout_per_ki_token",
        "hicache_storage_pass_prefix_keys",
    }
)
"""What SGLang 0.5.23 itself reads of `--hicache-storage-backend-extra-config`."""


def load_settings(extra_config: Mapping[str, Any], environ: Mapping[str, str]) -> Settings:
    """Read the storage backend's extra configuration and the environment. Raises SettingsError."""
    return load(extra_config, environ, threshold_variable=THRESHOLD_VARIABLE, engine_keys=ENGINE_KEYS)


def told_settings(extra_config: Mapping[str, Any], environ: Mapping[str, str]) -> Settings:
    """The same inside SGLang, which calls us as part of that configuration says. Raises SettingsError."""
    if not extra_config.get("interface_v1"):
        raise SettingsError(
            '--hicache-storage-backend-extra-config lacks "interface_v1": 1, without which SGLang stores no '
            "page with us: `hpkv launch sglang --print` shows it whole"
        )
    return load_settings(extra_config, environ)


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that `load_settings` reads. Raises SettingsError."""
    return {name: environ[name] for name in variables_of(environ, THRESHOLD_VARIABLE)}
