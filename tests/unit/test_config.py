"""Where settings come from, which source wins, and what is said about wrong ones."""

import re
import ssl
from pathlib import Path
from typing import Any

import pytest

from bridge.app import Bridge
from bridge.config import (
    ConfigError,
    Settings,
    default_advertised_address,
    load_settings,
)
from bridge.limits import Limits
from bridge.net.certificates import TlsFiles
from bridge.protocol.service_url import ServiceUrls
from tests.authority import Authority, Pair

BROKER: dict[str, Any] = {
    "broker_service_url": "pulsar://broker.example:6650",
    "broker_web_url": "http://broker.example:8080",
}


@pytest.fixture(autouse=True)
def _no_settings_of_this_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"DELAY_BRIDGE_{name.upper()}", raising=False)


def write(folder: Path, text: str) -> Path:
    file = folder / "bridge.toml"
    file.write_text(text)
    return file


def test_flags_win_over_environment_over_file_over_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, "port = 1\nweb_port = 1\nmax_client_connections = 1\n")
    monkeypatch.setenv("DELAY_BRIDGE_PORT", "2")
    monkeypatch.setenv("DELAY_BRIDGE_WEB_PORT", "2")
    loaded = load_settings(file, port=3, **BROKER)
    settings = loaded.settings
    assert (settings.port, settings.web_port, settings.max_client_connections) == (3, 2, 1)
    assert [loaded.source(name) for name in ("port", "web_port", "max_client_connections", "log_level")] == [
        "flag",
        "environment",
        "file",
        "default",
    ]


def test_flags_that_are_none_were_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELAY_BRIDGE_PORT", "7000")
    assert load_settings(port=None, **BROKER).settings.port == 7000


def test_an_empty_variable_is_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELAY_BRIDGE_BROKER_TOKEN", "")
    assert load_settings(**BROKER).settings.broker_token is None


def test_units_in_file_and_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELAY_BRIDGE_NEAR_TERM_BYTES", "64MB")
    settings = load_settings(write(tmp_path, 'partition_width_ms = "10m"'), **BROKER).settings
    assert (settings.partition_width_ms, settings.near_term_bytes) == (600_000, 64 << 20)


def test_made_directly_it_looks_at_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELAY_BRIDGE_PORT", "7000")
    assert Settings(**BROKER, port=0).port == 0
    assert Settings(**BROKER).port == 6650


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("prot = 1", "prot (file): no such setting, did you mean port?"),
        ("[bridge]\nport = 1", "bridge (file): no such setting"),
        ('port = "abc"', "port (file): Input should be a valid integer.* (given: 'abc')"),
        ("port = 70000", "port (file): Input should be less than or equal to 65535 (given: '70000')"),
        ('partition_width_ms = "5 parsecs"', "partition_width_ms (file): not a duration: '5 parsecs' (expected .*"),
        ("partition_width_ms = true", "partition_width_ms (file): not a duration: True (expected .*"),
        ("partition_width_ms = -5", "partition_width_ms (file): not a duration: -5 (expected at least 0 ms)"),
        (f'partition_width_ms = "{"9" * 400}d"', "partition_width_ms (file): not a duration: '9999.*"),
        (f'near_term_bytes = "{"9" * 400}gb"', "near_term_bytes (file): not a size: '9999.*"),
        ('near_term_bytes = "1XB"', "near_term_bytes (file): not a size: '1XB' (expected .*"),
        ('log_format = "xml"', "log_format (file): Input should be 'console' or 'json' (given: 'xml')"),
        ('broker_web_url = "broker:80"', "broker_web_url (file): not a web URL: 'broker:80' (expected .*"),
        ('broker_service_url = "http://b"', "broker_service_url (file): not a service URL: 'http://b' (expected .*"),
        ('advertised_address = ""', "advertised_address (file): String should have at least 1 character .*"),
    ],
)
def test_a_wrong_setting_is_named_with_source_and_value(tmp_path: Path, text: str, expected: str) -> None:
    given = {name: value for name, value in BROKER.items() if name not in text}
    with pytest.raises(ConfigError) as caught:
        load_settings(write(tmp_path, text), **given)
    [problem] = caught.value.problems
    pattern = ".*".join(re.escape(part) for part in expected.split(".*"))
    assert re.fullmatch(pattern, problem), problem


def test_every_problem_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELAY_BRIDGE_PORT", "x")
    monkeypatch.setenv("DELAY_BRIDGE_HOST", "0.0.0.0")
    with pytest.raises(ConfigError) as caught:
        load_settings(web_port=-1)
    names = [problem.split(":")[0] for problem in caught.value.problems]
    assert names == [
        "broker_service_url",
        "broker_web_url",
        "port (environment DELAY_BRIDGE_PORT)",
        "web_port (flag)",
    ]


def test_a_wrong_host_does_not_accuse_the_advertised_address() -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(host=5, **BROKER)
    assert caught.value.problems == ["host (flag): Input should be a valid string (given: '5')"]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*missing\.toml: No such file"):
        load_settings(tmp_path / "missing.toml")
    with pytest.raises(ConfigError, match=r"bridge\.toml is not TOML: Invalid value"):
        load_settings(write(tmp_path, "port ="))


def test_a_token_never_shows(tmp_path: Path) -> None:
    file = write(tmp_path, 'broker_token = "very-secret"')
    loaded = load_settings(file, **BROKER)
    assert loaded.settings.broker_token is not None
    assert loaded.settings.broker_token.get_secret_value() == "very-secret"
    assert "very-secret" not in f"{loaded.settings!r} {loaded.settings} {loaded.settings.model_dump_json()}"
    with pytest.raises(ConfigError) as caught:
        load_settings(write(tmp_path, 'broker_token = ["very-secret"]'), **BROKER)
    assert "broker_token (file)" in str(caught.value)
    assert "very-secret" not in str(caught.value)


ACCESS_TOKEN = "a-token-of-the-web-server"


def test_access_is_off_by_default_on_loopback_only() -> None:
    for host in ("127.0.0.1", "localhost", "::1"):
        assert load_settings(web_host=host, **BROKER).settings.access == "off"
    for host in ("0.0.0.0", "10.1.2.3", "::", "bridge.example"):
        with pytest.raises(ConfigError) as caught:
            load_settings(web_host=host, **BROKER)
        assert caught.value.problems == [
            f"access: has to be set to token, pulsar or off, for web_host {host!r} lets other machines in"
        ]
        assert load_settings(web_host=host, access="off", **BROKER).settings.access == "off"
        assert load_settings(web_host=host, access="pulsar", **BROKER).settings.access == "pulsar"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"access": "token"}, "access 'token': web_token or web_read_token has to be set"),
        ({"access": "token", "web_token": "short"}, "web_token (flag): has to have at least 16 characters"),
        (
            {"web_read_token": "two words of a token"},
            "web_read_token (flag): holds a blank or a character beyond ASCII",
        ),
        (
            {"web_token": ACCESS_TOKEN, "web_read_token": ACCESS_TOKEN},
            "web_token and web_read_token: have to differ",
        ),
        ({"access": "both"}, "access (flag): Input should be 'off', 'token' or 'pulsar' (given: 'both')"),
    ],
)
def test_access_that_makes_no_sense(given: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(**given, **BROKER)
    assert caught.value.problems == [expected]


@pytest.mark.parametrize("name", ["web_token", "web_read_token"])
def test_one_token_will_do(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"DELAY_BRIDGE_{name.upper()}", ACCESS_TOKEN)
    settings = load_settings(access="token", **BROKER).settings
    assert getattr(settings, name).get_secret_value() == ACCESS_TOKEN
    assert ACCESS_TOKEN not in f"{settings!r} {settings} {settings.model_dump_json()}"


def test_advertised_address_follows_what_is_listened_on() -> None:
    assert Settings(**BROKER, host="10.1.2.3").advertised_address == "10.1.2.3"
    assert Settings(**BROKER, host="10.1.2.3", advertised_address="bridge").advertised_address == "bridge"
    anywhere = default_advertised_address("0.0.0.0")
    assert anywhere
    assert anywhere != "0.0.0.0"


def test_a_bridge_that_would_connect_to_itself_is_refused() -> None:
    web = BROKER["broker_web_url"]
    with pytest.raises(ConfigError, match=r"'pulsar://localhost:6650' is the bridge itself"):
        load_settings(broker_service_url="pulsar://localhost:6650", broker_web_url=web)
    load_settings(broker_service_url="pulsar://localhost:6650", broker_web_url=web, port=6651)
    load_settings(broker_service_url="pulsar://other:6650", broker_web_url=web)
    load_settings(broker_service_url="pulsar://localhost:6650", broker_web_url=web, host="10.1.2.3")


# -- TLS


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.issue()


def test_tls_is_off_unless_it_has_a_port(pair: Pair) -> None:
    assert Settings(**BROKER).tls_files is None
    files = Settings(**BROKER, **pair.settings(6651)).tls_files
    assert files == TlsFiles(*pair, ssl.TLSVersion.TLSv1_2, None, False)


def test_tls_settings_from_a_file(tmp_path: Path, authority: Authority, pair: Pair) -> None:
    text = f"""
        tls_port = 6651
        tls_only = true
        tls_certificate_file_path = "{pair.certificate}"
        tls_key_file_path = "{pair.key}"
        tls_min_version = "1.3"
        tls_trust_certs_file_path = "{authority.certificate}"
        tls_require_trusted_client_cert_on_connect = true
    """
    settings = load_settings(write(tmp_path, text), **BROKER).settings
    assert settings.tls_files == TlsFiles(*pair, ssl.TLSVersion.TLSv1_3, authority.certificate, True)
    assert (settings.tls_port, settings.tls_only) == (6651, True)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"tls_certificate_file_path": None}, "tls_port 6651: tls_certificate_file_path has to be set"),
        ({"tls_key_file_path": None}, "tls_port 6651: tls_key_file_path has to be set"),
        ({"tls_port": 0}, "tls_certificate_file_path is set, and tls_port is not: set both, or none"),
        ({"tls_port": 0, "web_tls_port": 8081}, "web_tls_port 8081: has to be another than web_port"),
        (
            {"tls_port": 0, "web_tls_port": 8443, "tls_key_file_path": None},
            "web_tls_port 8443: tls_key_file_path has to be set",
        ),
        ({"tls_port": 0, "web_tls_port": 8443, "tls_only": True}, "tls_only is set, and tls_port is not: .*"),
        (
            {"broker_tls_trust_certs_file_path": "gone"},
            "broker_tls_trust_certs_file_path 'gone': cannot be read: No such file or directory",
        ),
        ({"tls_port": 6650}, "tls_port 6650: has to be another than port, unless tls_only is set"),
        ({"tls_require_trusted_client_cert_on_connect": True}, ".*: tls_trust_certs_file_path has to be set"),
        ({"tls_key_file_path": "gone"}, "tls_key_file_path 'gone': cannot be read: No such file or directory"),
        ({"tls_trust_certs_file_path": "gone"}, "tls_trust_certs_file_path 'gone': cannot be read: No such .*"),
        ({"tls_min_version": "1.1"}, r"tls_min_version \(flag\): Input should be '1.2' or '1.3' \(given: '1.1'\)"),
        ({"tls_port": 70_000}, r"tls_port \(flag\): Input should be less than or equal to 65535 \(given: '70000'\)"),
        (
            {"broker_service_url": "pulsar+ssl://localhost:6651"},
            "broker_service_url 'pulsar.ssl://localhost:6651' is the bridge itself: it listens on port 6651, .*",
        ),
    ],
)
def test_tls_settings_that_do_not_go_together(pair: Pair, changed: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(**(BROKER | pair.settings(6651) | changed))
    [said] = caught.value.problems
    assert re.fullmatch(problem, said), said


@pytest.mark.parametrize("name", ["tls_only", "tls_require_trusted_client_cert_on_connect"])
def test_a_switch_of_tls_without_a_port(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is set, and tls_port is not"):
        load_settings(**(BROKER | {name: True}))


def test_https_alone(pair: Pair) -> None:
    settings = Settings(**BROKER, **(pair.settings(0) | {"web_tls_port": 8443}))
    assert settings.tls_files == TlsFiles(*pair)
    bridge = Bridge(settings, Limits())
    assert bridge.advertised_urls.tls is None
    assert bridge.web_urls == ("http://127.0.0.1:8081", "https://127.0.0.1:8443")


def test_an_https_url_for_a_proxy_in_front() -> None:
    bridge = Bridge(Settings(**BROKER, advertised_web_url="https://b/"), Limits())
    assert bridge.web_urls == (None, "https://b")


def test_what_brokers_are_checked_against(authority: Authority) -> None:
    context = Settings(**BROKER).trusted_servers().context
    assert context.check_hostname
    settings = Settings(
        **BROKER, broker_tls_trust_certs_file_path=authority.certificate, broker_tls_hostname_verification=False
    )
    context = settings.trusted_servers().context
    assert not context.check_hostname
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert len(context.get_ca_certs()) == 1


def test_the_plain_port_is_not_in_the_way_when_it_is_not_opened(pair: Pair) -> None:
    load_settings(**BROKER, **pair.settings(6650), tls_only=True)


@pytest.mark.parametrize(
    ("tls_only", "urls"),
    [(False, ServiceUrls("pulsar://b:6650", "pulsar+ssl://b:6651")), (True, ServiceUrls(None, "pulsar+ssl://b:6651"))],
)
def test_where_clients_are_told_to_connect(pair: Pair, tls_only: bool, urls: ServiceUrls) -> None:
    settings = Settings(**BROKER, **pair.settings(6651), advertised_address="b", tls_only=tls_only)
    bridge = Bridge(settings, Limits())
    assert (bridge.advertised_urls, bridge.advertised_url) == (urls, urls.name)
