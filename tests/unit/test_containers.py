"""What can be said of image and Compose file without a Docker engine: their rules, and that what they name exists."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from bridge.config import ENV_PREFIX, Settings
from bridge.embedded.distribution import VERSION

ROOT = Path(__file__).parent.parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
IMAGE = f"pulsar-delay-bridge:{PROJECT['version']}"
OTHER_VARIABLES = {"DELAY_BRIDGE_AUTH_PARAMS"}
"""Read by the commands, not by the bridge."""
PINNED = re.compile(r"[\w./-]+:v?\d+\.\d+(\.\d+)?[\w.-]*")

Service = dict[str, Any]


class Step(NamedTuple):
    """One instruction of a Dockerfile."""

    stage: int
    instruction: str
    value: str


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return found


SERVICES: dict[str, Service] = compose()["services"]


def steps() -> list[Step]:
    """The Dockerfile's instructions, continued lines joined."""
    text = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE))
    found, stage = [], -1
    for line in filter(None, map(str.strip, text.splitlines())):
        instruction, _, value = line.partition(" ")
        stage += instruction == "FROM"
        found.append(Step(stage, instruction, value.strip()))
    return found


def last_stage(instruction: str) -> list[str]:
    every = steps()
    return [each.value for each in every if each.instruction == instruction and each.stage == every[-1].stage]


def is_variable_known(name: str) -> bool:
    setting = name.removeprefix(ENV_PREFIX).lower()
    return name in OTHER_VARIABLES or setting in Settings.model_fields


def health_command(service: Service) -> list[str]:
    """What is run, without the CMD before it."""
    test = service["healthcheck"]["test"]
    assert test[0] == "CMD", "the shell form needs a shell in the image"
    return list(test[1:])


# -- the image


def test_every_stage_starts_from_the_same_pinned_image() -> None:
    images = {each.value.split(" AS ")[0] for each in steps() if each.instruction == "FROM"}
    assert len(images) == 1
    image = images.pop()
    assert PINNED.fullmatch(image)
    assert image.startswith("python:3.")
    assert image.endswith("-slim-bookworm")


def test_what_is_copied_exists_and_reaches_the_builder() -> None:
    ignored = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert ignored[0] == "*", "everything is kept from the builder but what is named"
    let_in = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    stages = {each.value.split(" AS ")[1] for each in steps() if each.instruction == "FROM" and " AS " in each.value}
    copied = set()
    for each in steps():
        if each.instruction != "COPY":
            continue
        *sources, _target = each.value.split()
        if sources[0].startswith("--from="):
            assert sources[0].removeprefix("--from=") in stages
        else:
            copied.update(sources)
    assert copied == let_in
    assert all((ROOT / name).exists() for name in copied)


def test_the_image_has_all_that_a_wheel_is_built_from() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {*wheel["packages"], "pyproject.toml", PROJECT["readme"], *PROJECT["license-files"]}
    copied = {name for each in steps() if each.stage == 0 and each.instruction == "COPY" for name in each.value.split()}
    assert all(any(Path(name).is_relative_to(each) for each in copied) for name in needed)


def test_requirements_are_installed_by_their_hashes() -> None:
    """With all extras: Spark's master and workers, and the clients of the demo, run from it."""
    (install,) = [each.value for each in steps() if each.instruction == "RUN" and "--requirement" in each.value]
    assert "--require-hashes --requirement /tmp/requirements-all.lock" in install.replace('", "', " ")


def test_the_image_runs_as_a_user_with_a_name() -> None:
    (user,) = last_stage("USER")
    (made,) = [value for value in last_stage("RUN") if "useradd" in value]
    assert user == "delay-bridge"
    assert f"--user-group --home-dir /var/lib/delay-bridge --create-home {user}" in made
    every = steps()
    assert every.index(Step(every[-1].stage, "USER", user)) > max(
        place for place, each in enumerate(every) if each.instruction == "RUN"
    ), "files are installed by root"


def test_the_image_has_a_full_java() -> None:
    (made,) = [value for value in last_stage("RUN") if "openjdk" in value]
    assert int(re.findall(r"openjdk-(\d+)-jre-headless", made)[0]) >= 17
    assert "grep -q jdk.incubator.vector" in made


def test_signals_reach_the_bridge() -> None:
    (script,) = PROJECT["scripts"]
    assert last_stage("ENTRYPOINT") == [f'["{script}"]']
    assert last_stage("CMD") == ['["serve"]']
    assert "STOPSIGNAL" not in {each.instruction for each in steps()}, "SIGTERM, the default, is a clean stop"


def test_the_image_is_set_up_as_the_bridge_is_configured() -> None:
    environment = dict(re.findall(r"(DELAY_BRIDGE_\w+)=(\S+)", " ".join(last_stage("ENV"))))
    assert all(map(is_variable_known, environment))
    assert last_stage("VOLUME") == [environment["DELAY_BRIDGE_DATA_DIR"]]
    ports = [str(Settings.model_fields[name].default) for name in ("port", "web_port")]
    assert last_stage("EXPOSE") == [" ".join(ports)]
    (check,) = last_stage("HEALTHCHECK")
    assert "/healthz" in check
    assert ports[1] in check
    arguments = yaml.safe_load(check.split("CMD ")[1])
    assert arguments[:2] == ["python", "-c"]
    compile(arguments[2], "health check", "exec")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from exactly the files that the image's first stage has."""
    source = tmp_path_factory.mktemp("source")
    for each in steps():
        if each.stage == 0 and each.instruction == "COPY":
            for name in each.value.split()[:-1]:
                copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
                copy(ROOT / name, source / name)
    # A bridge that runs from a checkout leaves compiled files there; .dockerignore keeps them out.
    for cache in [*source.rglob("__pycache__")]:
        shutil.rmtree(cache)
    target = source.parent / f"{source.name}-wheels"
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(target)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    (built,) = target.glob("*.whl")
    return built


def test_the_wheel_holds_all_that_runs(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
        points = archive.read(next(name for name in inside if name.endswith("entry_points.txt"))).decode()
    assert "delay-bridge = bridge.cli:main" in points
    expected = {
        str(path.relative_to(ROOT))
        for package in ("tracker", "bridge", "spark_jobs")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert not expected - inside
    assert [name for name in inside if name.startswith("bridge/web/templates/")]
    assert not [name for name in inside if name.startswith(("tests", "deploy"))]


@pytest.mark.slow
def test_the_wheel_runs(wheel: Path, tmp_path: Path) -> None:
    """Unpacked, away from the checkout: what it shows is what it was given."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(tmp_path),
        "DELAY_BRIDGE_BROKER_SERVICE_URL": "pulsar://pulsar:6650",
        "DELAY_BRIDGE_BROKER_WEB_URL": "http://pulsar:8080",
    }
    code = "import bridge.cli, sys; print(bridge.cli.__file__, file=sys.stderr); bridge.cli.main(['config', 'check'])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "the configuration is good\n"), done.stderr
    assert done.stderr.startswith(str(tmp_path))


# -- the Compose file


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_complete(name: str) -> None:
    service = SERVICES[name]
    assert PINNED.fullmatch(service["image"]), service["image"]
    assert (service["image"] == IMAGE) == ("build" in service)
    assert service["restart"] == "unless-stopped"
    check = service["healthcheck"]
    if check != {"disable": True}:
        assert {"test", "interval", "timeout", "retries"} <= set(check)
        command = health_command(service)
        if "-c" in command:
            compile(command[-1], name, "exec")
    for other, condition in service.get("depends_on", {}).items():
        assert condition == {"condition": "service_healthy"}
        assert SERVICES[other]["healthcheck"] != {"disable": True}, f"{name} waits for {other}, which has no check"


@pytest.mark.parametrize("name", SERVICES)
def test_ports_are_for_this_machine_alone(name: str) -> None:
    for port in SERVICES[name].get("ports", ()):
        assert re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port), port


def test_no_port_is_published_twice() -> None:
    published = [port.rsplit(":", 1)[0] for service in SERVICES.values() for port in service.get("ports", ())]
    assert len(set(published)) == len(published)


def mounts() -> Iterator[tuple[str, str, str]]:
    """(service, volume or path, place in the container)."""
    for name, service in SERVICES.items():
        for mount in service.get("volumes", ()):
            source, target = mount.split(":")[:2]
            yield name, source, target


def test_volumes_and_files_that_are_mounted_exist() -> None:
    named = {source for _, source, _ in mounts() if not source.startswith("./")}
    assert named == set(compose()["volumes"])
    for _, source, _ in mounts():
        assert not source.startswith("./") or (ROOT / source).exists(), source
    used = {each["source"] for service in SERVICES.values() for each in service.get("configs", ())}
    assert used == set(compose()["configs"])


def test_variables_of_the_bridge_are_settings() -> None:
    for name, service in SERVICES.items():
        for variable in service.get("environment", {}):
            assert not variable.startswith(ENV_PREFIX) or is_variable_known(variable), f"{name}: {variable}"


@pytest.mark.parametrize("name", ["bridge-1", "bridge-2"])
def test_a_bridge_of_compose_can_be_configured_like_that(name: str) -> None:
    service = SERVICES[name]
    values: dict[str, Any] = {
        variable.removeprefix(ENV_PREFIX).lower(): re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value)
        for variable, value in service["environment"].items()
        if variable not in OTHER_VARIABLES
    }
    settings = Settings(**values)
    assert settings.advertised_address == service["hostname"] == name
    assert f"127.0.0.1:{settings.port}:{settings.port}" in service["ports"], "what is advertised is what is published"
    broker = settings.broker_service_url.removeprefix("pulsar://").split(":")[0]
    assert f"-a {broker}" in SERVICES[broker]["command"][-1], "the broker advertises the name it is known by"
    assert f":{settings.web_port}/readyz" in health_command(service)[-1]
    assert settings.access == "token", "the web server listens on all addresses"


def test_bridges_share_nothing_but_the_folder_jobs_write_to() -> None:
    places = {name: {target: source for who, source, target in mounts() if who == name} for name in SERVICES}
    output = SERVICES["bridge-1"]["environment"]["DELAY_BRIDGE_SPARK_OUTPUT"]
    first, second, worker = places["bridge-1"], places["bridge-2"], places["spark-worker"]
    assert set(first.values()) & set(second.values()) == {first[output]}
    assert worker == {output: first[output]}
    assert any(output in value for value in last_stage("RUN")), "the image has the folder, owned by its user"
    assert set(first) == {output, *last_stage("VOLUME")}


def test_spark_is_the_one_that_the_jobs_use() -> None:
    master, worker = SERVICES["spark-master"], SERVICES["spark-worker"]
    assert master["image"] == worker["image"] == SERVICES["bridge-1"]["image"]
    assert master["entrypoint"] == worker["entrypoint"] == ["spark-class"]
    assert shutil.which("spark-class", path=str(Path(sys.executable).parent))
    command = master["command"]
    port = command[command.index("--port") + 1]
    url = f"spark://{master['hostname']}:{port}"
    assert worker["command"][-1] == url == SERVICES["bridge-1"]["environment"]["DELAY_BRIDGE_SPARK_MASTER"]


def test_the_broker_is_the_one_that_is_tested() -> None:
    assert SERVICES["pulsar"]["image"] == f"apachepulsar/pulsar:{VERSION}"
    assert "/admin/v2/brokers/health" in health_command(SERVICES["pulsar"])[-1]


def test_the_example_tells_of_every_variable() -> None:
    """And gives the values that hold without it."""
    text = (ROOT / "docker-compose.yml").read_text()
    used = set(re.findall(r"\$\{(\w+):-([^}]*)\}", text))
    assert len(re.findall(r"(?<!\$)\$\{", text)) == len(re.findall(r"\$\{\w+:-[^}]+\}", text)), "each has a default"
    example = dict(re.findall(r"^(\w+)=(.*)$", (ROOT / ".env.example").read_text(), re.MULTILINE))
    assert dict(used) == example
    assert len(used) == len(example)


@pytest.mark.parametrize("name", ["producer", "consumer", "other-consumer"])
def test_the_demo_runs_what_is_there(name: str) -> None:
    """The scripts take these options: `--help` after them is answered."""
    command = SERVICES[name]["command"]
    script = ROOT / "deploy" / command[0].removeprefix("/")
    done = subprocess.run(
        [sys.executable, script, *command[1:], "--help"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    known = {re.match(r"pulsar://([\w-]+):(\d+)", each)[0] for each in SERVICES[name]["environment"].values()}  # type: ignore[index]
    advertised = {
        f"pulsar://{bridge}:{SERVICES[bridge]['environment'].get('DELAY_BRIDGE_PORT', '6650')}"
        for bridge in ("bridge-1", "bridge-2")
    }
    assert known <= advertised


def has_compose() -> bool:
    docker = shutil.which("docker")
    if docker is None:
        return False
    done = subprocess.run([docker, "compose", "version"], capture_output=True, timeout=30, check=False)
    return done.returncode == 0


def test_compose_accepts_the_file() -> None:
    if not has_compose():
        pytest.skip("no docker compose here")
    done = subprocess.run(
        ["docker", "compose", "config", "--quiet"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
