"""The configuration: flags over environment (`DELAY_BRIDGE_…`) over a TOML file over defaults, checked at start."""

import difflib
import re
import socket
import ssl
import tomllib
from collections import ChainMap
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

import platformdirs
from pydantic import (
    BeforeValidator,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from bridge.ledgers.bookies.read_from import ReadFrom
from bridge.net.certificates import CertificateError, TlsFiles, server_context
from bridge.net.trust import TrustedServers
from bridge.notation.quantities import parse_duration_ms, parse_size
from bridge.protocol.names import TopicName
from bridge.protocol.service_url import parse_service_url

ENV_PREFIX = "DELAY_BRIDGE_"
DATA_HOME = platformdirs.user_data_path("pulsar-delay-bridge")
LOOPBACK = ("localhost", "127.0.0.1", "::1")
TOKEN_MIN: Final = 16
"""Characters of a token that nobody guesses."""
_PORT_LAST: Final = 65535
ANY_ADDRESS = ("", "0.0.0.0", "::")
_OF_TLS = (
    "tls_only",
    "tls_certificate_file_path",
    "tls_key_file_path",
    "tls_trust_certs_file_path",
    "tls_require_trusted_client_cert_on_connect",
)
"""Settings that are of no use without `tls_port` or `web_tls_port`."""


def default_advertised_address(host: str) -> str:
    """The listening address itself; for "any address" the machine's full name, as brokers do."""
    return socket.getfqdn() if host in ANY_ADDRESS else host


def default_access(web_host: str) -> Literal["off"] | None:
    """Nobody is asked where only this machine can ask; elsewhere there is no default."""
    return "off" if web_host in LOOPBACK else None


DurationMs = Annotated[int, BeforeValidator(parse_duration_ms)]
SizeBytes = Annotated[int, BeforeValidator(parse_size)]


class ConfigError(Exception):
    """The configuration cannot be used; `problems` name each setting, where it came from, and its value."""

    def __init__(self, problems: list[str]) -> None:
        """One line for each problem."""
        self.problems = problems
        super().__init__("; ".join(problems))


class Settings(BaseSettings):
    """Every setting, by its name in the file; in the environment in capitals with the prefix `DELAY_BRIDGE_`.

    Made directly it holds what it is given and defaults, nothing else; `load_settings` looks at file and environment.
    """

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_ignore_empty=True, extra="forbid", frozen=True, hide_input_in_errors=True
    )

    broker_service_url: str = Field(description="where the bridge finds Pulsar: pulsar://HOST:PORT or pulsar+ssl://…")
    broker_web_url: str = Field(description="the broker's admin REST interface: http://HOST:PORT or https://…")
    broker_token: SecretStr | None = Field(
        default=None, description="token of the bridge's own connections; clients bring their own"
    )
    broker_tls_trust_certs_file_path: Path | None = Field(
        default=None,
        description="PEM file: authorities of the certificates of brokers, and of other bridges' web ports; by default "
        "the system's",
    )
    broker_tls_hostname_verification: bool = Field(
        default=True, description="refuse a broker whose certificate is for another host than the one connected to"
    )
    data_dir: Path = Field(default=DATA_HOME / "bridge", description="where the index is stored")
    host: str = Field(default="0.0.0.0", description="the address the bridge listens on for clients")
    port: int = Field(default=6650, ge=0, le=65535, description="the port clients connect to; 0 chooses a free one")
    advertised_address: str = Field(
        default_factory=lambda known: default_advertised_address(known["host"]),
        min_length=1,
        description="where clients are told to connect; by default `host`, or for 0.0.0.0 this machine's full name",
    )
    tls_port: int = Field(default=0, ge=0, le=65535, description="the port for clients with TLS; 0: there is none")
    tls_only: bool = Field(default=False, description="serve clients with TLS alone: `port` is not opened")
    tls_certificate_file_path: Path | None = Field(
        default=None, description="PEM file: the certificate for `advertised_address`, then those that lead to a root"
    )
    tls_key_file_path: Path | None = Field(
        default=None, description="PEM file: the private key of that certificate, without a passphrase"
    )
    tls_min_version: Literal["1.2", "1.3"] = Field(default="1.2", description="the oldest TLS a client may speak")
    tls_trust_certs_file_path: Path | None = Field(
        default=None,
        description="PEM file: authorities of clients' certificates; by default no client is asked for one",
    )
    tls_require_trusted_client_cert_on_connect: bool = Field(
        default=False, description="refuse clients with TLS that show no certificate; a wrong one is refused anyway"
    )
    web_host: str = Field(default="127.0.0.1", description="the address of REST and health")
    web_port: int = Field(default=8081, ge=0, le=65535, description="the port of REST and health; 0 chooses a free one")
    web_tls_port: int = Field(
        default=0,
        ge=0,
        le=65535,
        description="the same port by https, with the certificate of tls_certificate_file_path; 0: there is none",
    )
    advertised_web_url: str = Field(
        default="",
        description="where other bridges send callers to whose topic this one owns; by default http, "
        "`advertised_address` (`web_host` if that is loopback) and `web_port`",
    )
    cluster_secret: SecretStr | None = Field(
        default=None,
        description="the same for all bridges of a cluster, which know each other by it; at least 16 characters; "
        "without one, by the role that the broker knows them by",
    )
    peer_urls: str = Field(
        default="",
        description="URLs that other bridges may have, service URLs and web URL, separated by blanks, `*` for a part "
        "between dots; by default any",
    )
    members_topic: str = Field(
        default="persistent://public/default/__delay-bridge-members",
        description="an empty topic on which the bridges of a cluster find each other, the same for all of them; the "
        "bridge's role has to be allowed to consume from it. `off`: each knows only who serves the same topics",
    )
    standby_count: int = Field(
        default=1,
        ge=0,
        le=100,
        description="so many bridges beside the owner read a topic partition too, into an index of their own, and can "
        "take it over without reading it then; 0: none",
    )
    access: Literal["off", "token", "pulsar"] | None = Field(
        default_factory=lambda known: default_access(known["web_host"]),
        description="who may use REST and pages: off (everybody), token, or pulsar (the caller's own Pulsar token)",
    )
    web_token: SecretStr | None = Field(
        default=None, description="with access token: it may see and steer; at least 16 characters"
    )
    web_read_token: SecretStr | None = Field(
        default=None, description="with access token: it may see; at least 16 characters"
    )
    front_door: Literal["off", "clients", "all"] = Field(
        default="clients",
        description="what of the broker's HTTP interface is answered at web_port, with the caller's own rights at the "
        "broker: off (nothing), clients (lookups and what else clients with an http service URL ask), "
        "or all (the admin interface, as pulsar-admin uses it)",
    )
    delays_on_exclusive: str = Field(
        default="",
        description="where delays count for Exclusive and Failover subscriptions too: namespaces (tenant/namespace) "
        "and topics (persistent://tenant/namespace/topic), separated by blanks, `*` for any part of a name; by "
        "default nowhere. A subscription's property `delay-bridge.delays`, true or false, goes first",
    )
    workers: int = Field(
        default=1,
        ge=1,
        le=64,
        description="bridges that `serve` runs side by side, each on a processor of its own; clients connect to the "
        "same port, and topics are shared among them as among the bridges of a cluster",
    )
    worker_port: int = Field(
        default=16650,
        ge=0,
        le=_PORT_LAST,
        description="with several workers, where each has three ports of its own, in a row: for clients, which lookups "
        "lead there, for clients with TLS, and for REST; 0 chooses free ones",
    )
    partition_width_ms: DurationMs = Field(
        default=300_000, ge=1_000, description="the width of a time partition, e.g. 5m"
    )
    near_term_bytes: SizeBytes = Field(
        default=32 << 20, ge=1 << 16, description="memory for what comes due next, per topic partition, e.g. 32MB"
    )
    rebuild_from_entries: int = Field(
        default=500_000, ge=0, description="entries from which on a gap is filled by a Spark job; 0: never"
    )
    snapshot_dir: Path | None = Field(
        default=None,
        description="folder that all bridges of the cluster reach, for snapshots of the indexes: a bridge whose index "
        "is lost begins with the newest one; by default there are none",
    )
    snapshot_interval_ms: DurationMs = Field(
        default=3_600_000, ge=1_000, description="how often the owner of a topic partition takes a snapshot, e.g. 1h"
    )
    read_from: ReadFrom = Field(
        default=ReadFrom.auto,
        description="where lost parts of an index are read: bookies, which leaves the broker alone; broker; or auto, "
        "the bookies as far as they can be reached and the broker for the rest",
    )
    spark_master: str = Field(
        default="local[*]", min_length=1, description="where Spark jobs run: local[*], spark://…, yarn, k8s://…"
    )
    spark_conf: str = Field(default="", description="settings of Spark jobs: key=value, separated by blanks")
    spark_output: str = Field(
        default="",
        description="folder or URI where Spark jobs write, if not in the data directory: for workers on other machines",
    )
    max_clock_offset_ms: DurationMs | None = Field(
        default=None,
        ge=1_000,
        description="a bridge whose clock is further from the broker's, as several answers say, owns no topic, e.g. "
        "5s; brokers tell whole seconds; by default it only warns",
    )
    cluster: str = Field(default="pulsar", min_length=1, description="the label `cluster` of all metrics")
    max_client_connections: int = Field(default=10_000, ge=1, description="further clients are refused")
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="what is logged")
    log_format: Literal["console", "json"] = Field(default="console", description="for people, or for programs")

    @field_validator("broker_service_url")
    @classmethod
    def _service_url(cls, value: str) -> str:
        parse_service_url(value)
        return value

    @field_validator("broker_web_url", "advertised_web_url")
    @classmethod
    def _web_url(cls, value: str, info: ValidationInfo) -> str:
        given = value or info.field_name == "broker_web_url"
        if given and not re.match(r"https?://[^/]+", value):
            raise ValueError(f"not a web URL: {value!r} (expected http://host:port)")
        return value.rstrip("/")

    @field_validator("members_topic")
    @classmethod
    def _members_topic(cls, value: str) -> str:
        return "off" if value in ("", "off") else str(TopicName.parse(value))

    @field_validator("spark_conf")
    @classmethod
    def _spark_conf(cls, value: str) -> str:
        for each in value.split():
            if not each.partition("=")[1]:
                raise ValueError(f"not a setting of Spark: {each!r} (expected key=value, separated by blanks)")
        return value

    @field_validator("web_token", "web_read_token", "cluster_secret")
    @classmethod
    def _cannot_be_guessed(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not re.fullmatch(r"[\x21-\x7e]*", value.get_secret_value()):
            raise ValueError("holds a blank or a character beyond ASCII")
        if value is not None and len(value.get_secret_value()) < TOKEN_MIN:
            raise ValueError(f"has to have at least {TOKEN_MIN} characters")
        return value

    @model_validator(mode="after")
    def _access_is_chosen(self) -> Self:
        if self.access is None:
            raise ValueError(
                f"access: has to be set to token, pulsar or off, for web_host {self.web_host!r} lets other machines in"
            )
        tokens = [each.get_secret_value() for each in (self.web_token, self.web_read_token) if each is not None]
        if self.access == "token" and not tokens:
            raise ValueError("access 'token': web_token or web_read_token has to be set")
        if len(tokens) > len(set(tokens)):
            raise ValueError("web_token and web_read_token: have to differ")
        return self

    @model_validator(mode="after")
    def _workers_find_each_other(self) -> Self:
        if self.workers > 1 and self.members_topic == "off":
            raise ValueError(f"workers {self.workers}: members_topic has to be set, they share topics by it")
        last = self.worker_port + 3 * self.workers - 1
        if self.workers > 1 and self.worker_port:
            if last > _PORT_LAST:
                raise ValueError(f"worker_port {self.worker_port}: {self.workers} workers need ports up to {last}")
            for name in ("port", "tls_port", "web_port", "web_tls_port"):
                if self.worker_port <= (port := getattr(self, name)) <= last:
                    raise ValueError(f"{name} {port}: is one of the workers' own, {self.worker_port} to {last}")
        return self

    @model_validator(mode="after")
    def _not_itself(self) -> Self:
        broker = parse_service_url(self.broker_service_url)
        own = {self.host, self.advertised_address}
        if self.host in (*ANY_ADDRESS, *LOOPBACK):
            own.update(LOOPBACK)
        ports = {self.tls_port} if self.tls_only else {self.port, self.tls_port}
        if broker.port in ports and broker.host in own:
            raise ValueError(
                f"broker_service_url {self.broker_service_url!r} is the bridge itself: "
                f"it listens on port {broker.port}, set another"
            )
        return self

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Self:
        if not self.tls_port and not self.web_tls_port:
            for name in _OF_TLS:
                if getattr(self, name) not in (None, False):
                    raise ValueError(f"{name} is set, and tls_port is not: set both, or none")
            return self
        ports = {"tls_port": self.tls_port, "web_tls_port": self.web_tls_port}
        for name in ("tls_certificate_file_path", "tls_key_file_path"):
            if getattr(self, name) is None:
                of = next(f"{port} {number}" for port, number in ports.items() if number)
                raise ValueError(f"{of}: {name} has to be set")
        if self.tls_only and not self.tls_port:
            raise ValueError("tls_only is set, and tls_port is not: set both, or none")
        if self.web_tls_port and self.web_tls_port == self.web_port:
            raise ValueError(f"web_tls_port {self.web_tls_port}: has to be another than web_port")
        if self.tls_port and self.tls_port == self.port and not self.tls_only:
            raise ValueError(f"tls_port {self.tls_port}: has to be another than port, unless tls_only is set")
        if self.tls_require_trusted_client_cert_on_connect and self.tls_trust_certs_file_path is None:
            raise ValueError("tls_require_trusted_client_cert_on_connect: tls_trust_certs_file_path has to be set")
        return self

    @model_validator(mode="after")
    def _tls_files_can_be_used(self) -> Self:
        try:
            if self.tls_files is not None:
                server_context(self.tls_files)
            if self.broker_tls_trust_certs_file_path is not None:
                _ = self.trusted_servers().context
        except CertificateError as error:
            raise ValueError(str(error)) from None
        return self

    def trusted_servers(self) -> TrustedServers:
        """What the certificates of brokers are checked against."""
        return TrustedServers(
            self.broker_tls_trust_certs_file_path,
            check_host_name=self.broker_tls_hostname_verification,
            setting="broker_tls_trust_certs_file_path",
        )

    @property
    def tls_files(self) -> TlsFiles | None:
        """What is shown at the TLS ports; None where there are none."""
        certificate, key = self.tls_certificate_file_path, self.tls_key_file_path
        if not (self.tls_port or self.web_tls_port) or certificate is None or key is None:
            return None
        return TlsFiles(
            certificate,
            key,
            ssl.TLSVersion.TLSv1_3 if self.tls_min_version == "1.3" else ssl.TLSVersion.TLSv1_2,
            self.tls_trust_certs_file_path,
            self.tls_require_trusted_client_cert_on_connect,
        )

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, *others: Any, **named: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments alone: `load_settings` puts the sources together, to know where each value came from."""
        return (init_settings,)


SECRETS = frozenset(name for name, field in Settings.model_fields.items() if "SecretStr" in str(field.annotation))
"""Settings that are never shown."""


class Loaded:
    """The effective configuration and where each value came from."""

    def __init__(self, settings: Settings, layers: dict[str, dict[str, Any]]) -> None:
        """`layers`: by the name of the source, highest first."""
        self.settings = settings
        self._layers = layers

    def source(self, name: str) -> str:
        """`flag`, `environment`, `file` or `default`."""
        return _source(name, self._layers)


def load_settings(file: Path | None = None, **flags: Any) -> Loaded:
    """The effective configuration; flags that are None were not given. Raises ConfigError."""
    layers = {
        "flag": {name: value for name, value in flags.items() if value is not None},
        "environment": EnvSettingsSource(Settings)(),
        "file": {} if file is None else _read_file(file),
    }
    try:
        return Loaded(Settings(**ChainMap(*layers.values())), layers)
    except ValidationError as error:
        # Settings whose default depends on a wrong one are not wrong themselves.
        wrong = [each for each in error.errors() if each["type"] != "default_factory_not_called"]
        raise ConfigError([_problem(each, layers) for each in wrong]) from None


def _source(name: str, layers: dict[str, dict[str, Any]]) -> str:
    return next((layer for layer, values in layers.items() if name in values), "default")


def _problem(error: ErrorDetails, layers: dict[str, dict[str, Any]]) -> str:
    message = error["msg"].removeprefix("Value error, ")
    if not error["loc"]:  # several settings that do not go together
        return message
    name = str(error["loc"][0])
    if error["type"] == "missing":
        flag = "--" + name.replace("_", "-")
        return f"{name}: has to be set (flag {flag}, environment {ENV_PREFIX}{name.upper()}, or in the file)"
    if error["type"] == "extra_forbidden":
        close = difflib.get_close_matches(name, Settings.model_fields, 1)
        return f"{name} (file): no such setting" + (f", did you mean {close[0]}?" if close else "")
    source = _source(name, layers)
    where = f"environment {ENV_PREFIX}{name.upper()}" if source == "environment" else source
    secret = name in SECRETS
    given = "" if secret or repr(error["input"]) in message else f" (given: {str(error['input'])!r})"
    return f"{name} ({where}): {message}{given}"


def _read_file(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except OSError as error:
        raise ConfigError([f"cannot read {file}: {error.strerror}"]) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError([f"{file} is not TOML: {error}"]) from error
