"""The gateway's settings: one model; flags > environment (`HPKV_SECTION__KEY`) > file > defaults."""

from gateway.settings.access import AccessSettings, hash_key
from gateway.settings.base import SettingsError
from gateway.settings.listen import LimitSettings, Listen, ShutdownSettings
from gateway.settings.load import load_settings
from gateway.settings.log import LogSettings
from gateway.settings.model import Settings
from gateway.settings.replicas import (
    ProbeSettings,
    RegistrationSettings,
    ReplicaSettings,
    ServerSettings,
    TimeoutSettings,
)
from gateway.settings.routing import ModelSettings, PrefixSettings, RoutingSettings
from gateway.settings.tenants import TenantSettings

__all__ = [
    "AccessSettings",
    "LimitSettings",
    "Listen",
    "LogSettings",
    "ModelSettings",
    "PrefixSettings",
    "ProbeSettings",
    "RegistrationSettings",
    "ReplicaSettings",
    "RoutingSettings",
    "ServerSettings",
    "Settings",
    "SettingsError",
    "ShutdownSettings",
    "TenantSettings",
    "TimeoutSettings",
    "hash_key",
    "load_settings",
]
