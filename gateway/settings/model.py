"""All sections together, and where their values come from."""

from typing import Self

from pydantic import model_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from gateway.settings.access import AccessSettings
from gateway.settings.listen import LimitSettings, Listen, ShutdownSettings
from gateway.settings.log import LogSettings
from gateway.settings.replicas import ProbeSettings, RegistrationSettings, ReplicaSettings, TimeoutSettings
from gateway.settings.routing import ModelSettings, PrefixSettings, RoutingSettings
from gateway.settings.tenants import TenantSettings


class Settings(BaseSettings):
    """All of the gateway's settings."""

    model_config = SettingsConfigDict(
        env_prefix="HPKV_",
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        nested_model_default_partial_update=True,
    )

    listen: Listen = Listen()
    replicas: list[ReplicaSettings] = []
    registration: RegistrationSettings = RegistrationSettings()
    routing: RoutingSettings = RoutingSettings()
    prefix: PrefixSettings = PrefixSettings()
    models: dict[str, ModelSettings] = {}
    timeouts: TimeoutSettings = TimeoutSettings()
    probes: ProbeSettings = ProbeSettings()
    limits: LimitSettings = LimitSettings()
    access: AccessSettings = AccessSettings()
    tenants: TenantSettings = TenantSettings()
    shutdown: ShutdownSettings = ShutdownSettings()
    log: LogSettings = LogSettings()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [name for replica in self.replicas for name in replica.rank_names()]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"replicas: the name {twice[0]} is given twice")
        if not self.listen.loopback and not self.access.api_keys:
            raise ValueError(
                f"listen.host {self.listen.host} is reachable from other machines, and no API key is set: "
                "set access.api_keys_file (HPKV_ACCESS__API_KEYS_FILE), or listen on 127.0.0.1"
            )
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags, then the environment; `load_settings` adds the file."""
        assert isinstance(init_settings, InitSettingsSource)
        values = dict(init_settings.init_kwargs)
        file = values.pop("_file", None)
        sources: list[PydanticBaseSettingsSource] = [InitSettingsSource(settings_cls, values), env_settings]
        if file is not None:
            sources.append(InitSettingsSource(settings_cls, file))
        return tuple(sources)
