"""The configuration: flags over environment (`DELAY_BRIDGE_…`) over a TOML file over defaults, checked at start."""

import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import platformdirs
from pydantic import BeforeValidator, Field, SecretStr, field_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from bridge import limits
from bridge.broker.connection import split_service_url

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_UNITS_BYTES = {"": 1, "b": 1, "k": 1 << 10, "kb": 1 << 10, "m": 1 << 20, "mb": 1 << 20, "g": 1 << 30, "gb": 1 << 30}


def parse_duration_ms(value: Any) -> int:
    """`10s`, `5m`, `3h`, `2d`, `250ms`, or a number of ms. Raises ValueError naming the value."""
    if isinstance(value, int):
        return value
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", str(value).strip())
    if match is None:
        raise ValueError(f"not a duration: {value!r} (expected a number and a unit: 250ms 10s 5m 3h 2d)")
    return round(float(match[1]) * _UNITS_MS[match[2]])


def parse_size(value: Any) -> int:
    """`64MB`, `1g`, or a number of bytes. Raises ValueError naming the value."""
    if isinstance(value, int):
        return value
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", str(value).strip().lower())
    if match is None or match[2] not in _UNITS_BYTES:
        raise ValueError(f"not a size: {value!r} (expected a number of bytes, or with a unit: 512KB 64MB 1GB)")
    return round(float(match[1]) * _UNITS_BYTES[match[2]])


DurationMs = Annotated[int, BeforeValidator(parse_duration_ms)]
SizeBytes = Annotated[int, BeforeValidator(parse_size)]


class ConfigError(Exception):
    """The configuration cannot be used; the message names the setting and the value."""


class Settings(BaseSettings):
    """Every setting, by its name in the file; in the environment in capitals with the prefix `DELAY_BRIDGE_`."""

    model_config = SettingsConfigDict(env_prefix="DELAY_BRIDGE_", extra="forbid", frozen=True)

    broker_service_url: str = Field("pulsar://localhost:6650", description="where the bridge finds Pulsar")
    broker_web_url: str = Field("http://localhost:8080", description="the broker's admin REST interface")
    broker_token: SecretStr | None = Field(
        None, description="token of the bridge's own connections; clients bring their own"
    )
    data_dir: Path = Field(
        Path(platformdirs.user_data_dir("pulsar-delay-bridge")), description="where the index is stored"
    )
    host: str = Field("0.0.0.0", description="the address clients connect to")
    port: int = Field(6650, ge=0, le=65535, description="the port clients connect to; 0 chooses a free one")
    advertised_address: str = Field("localhost", description="the host name clients are told to connect to")
    web_host: str = Field("127.0.0.1", description="the address of REST, metrics and health")
    web_port: int = Field(8081, ge=0, le=65535, description="the port of REST, metrics and health")
    partition_width_ms: DurationMs = Field(300_000, ge=1_000, description="the width of a time partition, e.g. 5m")
    near_term_bytes: SizeBytes = Field(
        32 << 20, ge=1 << 16, description="memory for what comes due next, per topic partition, e.g. 32MB"
    )
    max_client_connections: int = Field(limits.MAX_CLIENT_CONNECTIONS, ge=1, description="further clients are refused")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="what is logged")
    log_format: Literal["console", "json"] = Field("console", description="for people, or for programs")

    @field_validator("broker_service_url")
    @classmethod
    def _service_url(cls, value: str) -> str:
        split_service_url(value)
        return value

    @field_validator("broker_web_url")
    @classmethod
    def _web_url(cls, value: str) -> str:
        if not re.match(r"https?://[^/]+", value):
            raise ValueError(f"not a web URL: {value!r} (expected http://host:port)")
        return value

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, *sources: Any, **named: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags come as arguments, the file below the environment; see `load_settings`."""
        file = InitSettingsSource(settings_cls, _file_values.copy())
        return (init_settings, named["env_settings"], file)


_file_values: dict[str, Any] = {}
"""What the file being loaded says; set only by `load_settings`, which is called once at start."""


def load_settings(file: Path | None = None, **flags: Any) -> Settings:
    """The effective configuration; flags that are None were not given. Raises ConfigError."""
    from pydantic import ValidationError

    _file_values.clear()
    if file is not None:
        _file_values.update(_read_file(file))
    try:
        return Settings(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, each['loc']))}: {each['msg']} (given: {each['input']!r})" for each in error.errors()
        ]
        raise ConfigError("; ".join(problems)) from None
    finally:
        _file_values.clear()


def _problem(error: dict[str, Any]) -> str:
    name = ".".join(map(str, error["loc"]))
    given = "" if "token" in name else f" (given: {error['input']!r})"
    return f"{name}: {error['msg']}{given}"


def _read_file(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not TOML: {error}") from error
