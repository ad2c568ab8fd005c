"""The systemd unit and the manifests of Kubernetes: structure, and that what they name exists."""

import re
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from bridge.config import ENV_PREFIX, Settings
from tests.unit.test_containers import IMAGE, is_variable_known, last_stage

ROOT = Path(__file__).parent.parent.parent
UNIT = ROOT / "deploy" / "systemd" / "delay-bridge.service"
KUBERNETES = ROOT / "deploy" / "kubernetes"

Manifest = dict[str, Any]


def manifests() -> list[Manifest]:
    return [each for file in sorted(KUBERNETES.glob("*.yaml")) for each in yaml.safe_load_all(file.read_text()) if each]


def of_kind(kind: str) -> list[Manifest]:
    return [each for each in manifests() if each["kind"] == kind]


def pod() -> Manifest:
    (stateful,) = of_kind("StatefulSet")
    found: Manifest = stateful["spec"]["template"]
    return found


def container() -> Manifest:
    (found,) = pod()["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def unit() -> dict[str, dict[str, list[str]]]:
    """Sections with their settings; one that is given several times has several values."""
    sections: dict[str, dict[str, list[str]]] = {}
    for line in UNIT.read_text().splitlines():
        if match := re.fullmatch(r"\[(\w+)\]", line):
            sections[match[1]] = defaultdict(list)
        elif line and not line.startswith("#"):
            name, _, value = line.partition("=")
            list(sections.values())[-1][name].append(value)
    return sections


# -- systemd


def test_the_unit_starts_the_bridge() -> None:
    sections = unit()
    assert set(sections) == {"Unit", "Service", "Install"}
    service = sections["Service"]
    program, *arguments = service["ExecStart"][0].split()
    assert (Path(program).name, arguments) == ("delay-bridge", ["serve"])
    assert program.startswith("/opt/delay-bridge/bin/"), "where the pages say it is installed"
    assert service["Restart"] == ["on-failure"]
    variables = dict(each.split("=", 1) for each in service["Environment"])
    assert variables[f"{ENV_PREFIX}DATA_DIR"] == f"/var/lib/{service['StateDirectory'][0]}"
    assert all(is_variable_known(name) or name == f"{ENV_PREFIX}CONFIG" for name in variables)
    assert not [line for line in UNIT.read_text().splitlines() if "TOKEN=" in line and not line.startswith("#")]


def test_the_unit_gives_no_privileges() -> None:
    service = unit()["Service"]
    for name in ("DynamicUser", "NoNewPrivileges", "PrivateTmp", "PrivateDevices", "ProtectHome", "RestrictSUIDSGID"):
        assert service[name] == ["yes"], name
    assert service["ProtectSystem"] == ["strict"]
    assert service["CapabilityBoundingSet"] == [""]
    assert "MemoryDenyWriteExecute" not in service, "Java could not run"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    copy = tmp_path / UNIT.name
    # It looks whether the program is there.
    copy.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", UNIT.read_text(), flags=re.MULTILINE))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert str(copy) not in done.stderr


# -- Kubernetes


@pytest.mark.parametrize("manifest", manifests(), ids=lambda each: f"{each['kind']}-{each['metadata']['name']}")
def test_a_manifest_is_whole(manifest: Manifest) -> None:
    versions = {
        "Secret": "v1",
        "Service": "v1",
        "PodDisruptionBudget": "policy/v1",
        "StatefulSet": "apps/v1",
        "ServiceMonitor": "monitoring.coreos.com/v1",
    }
    assert manifest["apiVersion"] == versions[manifest["kind"]]
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", manifest["metadata"]["name"])
    assert manifest["metadata"]["labels"]["app.kubernetes.io/name"] == "delay-bridge"
    assert "namespace" not in manifest["metadata"], "kubectl apply -n says where"


def test_selectors_find_the_pods() -> None:
    labels = pod()["metadata"]["labels"].items()
    (stateful,) = of_kind("StatefulSet")
    (budget,) = of_kind("PodDisruptionBudget")
    selectors = [each["spec"]["selector"] for each in of_kind("Service")]
    selectors += [each["spec"]["selector"]["matchLabels"] for each in (stateful, budget)]
    assert len(selectors) == 4
    for selector in selectors:
        assert selector
        assert selector.items() <= labels
    assert stateful["spec"]["replicas"] > budget["spec"]["maxUnavailable"] >= 1


def test_pods_advertise_the_names_the_headless_service_gives_them() -> None:
    (stateful,) = of_kind("StatefulSet")
    (headless,) = [each for each in of_kind("Service") if each["spec"].get("clusterIP") == "None"]
    name = headless["metadata"]["name"]
    assert stateful["spec"]["serviceName"] == name
    assert headless["spec"]["publishNotReadyAddresses"] is True
    variables = [each["name"] for each in container()["env"]]
    (address,) = [each["value"] for each in container()["env"] if each["name"] == f"{ENV_PREFIX}ADVERTISED_ADDRESS"]
    assert address == f"$(POD_NAME).{name}.$(POD_NAMESPACE).svc.cluster.local"
    # Only a variable that was defined before is put in.
    assert max(map(variables.index, ("POD_NAME", "POD_NAMESPACE"))) < variables.index(f"{ENV_PREFIX}ADVERTISED_ADDRESS")


def test_variables_are_settings_and_secrets_are_there() -> None:
    secrets = {each["metadata"]["name"]: each["stringData"] for each in of_kind("Secret")}
    for variable in container()["env"]:
        assert variable["name"].startswith("POD_") or is_variable_known(variable["name"]), variable
        if reference := variable.get("valueFrom", {}).get("secretKeyRef"):
            assert reference.get("optional") or reference["key"] in secrets[reference["name"]]
        if "TOKEN" in variable["name"]:
            assert "value" not in variable, "a token comes from a Secret"


def test_a_pod_can_be_configured_like_that() -> None:
    """With the Secret as it is written down, which has to be changed."""
    (secret,) = of_kind("Secret")
    values: dict[str, Any] = {}
    for variable in container()["env"]:
        name = variable["name"].removeprefix(ENV_PREFIX).lower()
        reference = variable.get("valueFrom", {}).get("secretKeyRef")
        if reference is not None:
            values[name] = secret["stringData"].get(reference["key"])
        elif name in Settings.model_fields:
            values[name] = variable["value"]
    given = {name: value for name, value in values.items() if value is not None}
    settings = Settings(web_host="0.0.0.0", **given)
    assert settings.access == "token"
    assert settings.broker_token is None


def test_no_service_sets_a_setting() -> None:
    """A Service NAME puts NAME_PORT and others into every pod, unless these links are off."""
    clashing = [
        name
        for name in (each["metadata"]["name"] for each in of_kind("Service"))
        if f"{name.upper().replace('-', '_')}_PORT".removeprefix(ENV_PREFIX).lower() in Settings.model_fields
    ]
    assert not clashing or pod()["spec"]["enableServiceLinks"] is False


def test_ports_have_names_that_are_used() -> None:
    ports = {each["name"]: each["containerPort"] for each in container()["ports"]}
    assert ports == {
        name: Settings.model_fields[field].default for name, field in (("pulsar", "port"), ("web", "web_port"))
    }
    for service in of_kind("Service"):
        assert {each["name"]: (each["port"], each["targetPort"]) for each in service["spec"]["ports"]} == {
            name: (number, name) for name, number in ports.items()
        }
    probes = {name: container()[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert all(each["port"] == "web" for each in probes.values())
    assert [each["path"] for each in probes.values()] == ["/healthz", "/healthz", "/readyz"]


def test_the_pod_suits_the_image() -> None:
    assert container()["image"] == IMAGE
    user = re.findall(r"--uid (\d+)", " ".join(last_stage("RUN")))
    context = pod()["spec"]["securityContext"]
    assert [str(context["runAsUser"])] == user
    assert context["fsGroup"] == context["runAsUser"]
    assert context["runAsNonRoot"] is True
    mounted = {each["name"]: each["mountPath"] for each in container()["volumeMounts"]}
    (stateful,) = of_kind("StatefulSet")
    claims = {each["metadata"]["name"] for each in stateful["spec"]["volumeClaimTemplates"]}
    assert set(mounted) == claims | {each["name"] for each in pod()["spec"]["volumes"]}
    assert mounted["data"] == last_stage("VOLUME")[0]
    own = container()["securityContext"]
    assert own["readOnlyRootFilesystem"] is True
    assert "/tmp" in mounted.values(), "Spark and Python need a place for temporary files"
    assert own["allowPrivilegeEscalation"] is False


def test_the_monitor_finds_one_service_of_the_bridges() -> None:
    (monitor,) = of_kind("ServiceMonitor")
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    found = [each for each in of_kind("Service") if wanted <= each["metadata"]["labels"].items()]
    assert [each["spec"].get("clusterIP") for each in found] == ["None"], "each bridge once"
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in {each["name"] for each in found[0]["spec"]["ports"]}
    (secret,) = of_kind("Secret")
    credentials = endpoint["authorization"]["credentials"]
    assert (credentials["name"], credentials["key"] in secret["stringData"]) == (secret["metadata"]["name"], True)
    assert found[0]["metadata"]["labels"][monitor["spec"]["jobLabel"]] == "delay-bridge", "the job alerts look for"
