"""Alerts and dashboard ask for what the bridge tells, and each alert has its runbook."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bridge.web.metrics.scrape import FAMILIES, PREFIX

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "deploy"
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
DASHBOARD = DEPLOY / "grafana" / "dashboards" / "delay-bridge.json"
OPERATING = ROOT / "docs" / "operating.md"
NAME = re.compile(rf"\b{PREFIX}[a-z0-9_]+")
ADDED_LABELS = ("job", "instance")
"""By Prometheus, to every sample."""

HISTOGRAM_ENDS = ("bucket", "sum", "count")

Rule = dict[str, Any]


def exported() -> dict[str, set[str]]:
    """The samples' names of everything the bridge tells, without the prefix, with their labels."""
    found: dict[str, set[str]] = {}
    for family in FAMILIES:
        labels = {*family.labels, *ADDED_LABELS}
        if family.kind == "histogram":
            found |= {f"{family.name}_{end}": labels | ({"le"} if end == "bucket" else set()) for end in HISTOGRAM_ENDS}
        else:
            found[family.name] = labels
    return found


def alert_rules() -> list[Rule]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return found


def dashboard_queries() -> Iterator[tuple[str, str]]:
    """(title of the panel, query)."""
    for panel in panels():
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def asked_names(text: str) -> set[str]:
    return {name.removeprefix(PREFIX) for name in NAME.findall(text)}


def unknown_names(text: str) -> set[str]:
    return asked_names(text) - set(exported())


def unknown_labels(text: str) -> set[str]:
    """Labels in the selector of a metric that it does not have."""
    selectors = re.findall(rf"\b{PREFIX}([a-z0-9_]+)\{{([^}}]*)\}}", text)
    return {
        f"{name}.{label}"
        for name, selector in selectors
        for label in set(re.findall(r"(\w+)\s*(?:=~|=|!=|!~)", selector)) - exported()[name]
    }


def brackets_balance(expression: str) -> bool:
    """Outside of strings."""
    closing, waiting = {")": "(", "}": "{", "]": "["}, []
    for character in re.sub(r'"(?:[^"\\]|\\.)*"', "", expression):
        if character in closing.values():
            waiting.append(character)
        elif character in closing and (not waiting or waiting.pop() != closing[character]):
            return False
    return not waiting


def test_the_checks_find_what_is_wrong() -> None:
    assert unknown_names(f"sum({PREFIX}pending_entry)") == {"pending_entry"}
    assert not unknown_names(f"rate({PREFIX}lateness_seconds_bucket[5m]) and {PREFIX}pending_entries")
    assert unknown_names(f"{PREFIX}lateness_seconds") == {"lateness_seconds"}, "a histogram has no sample of its name"
    assert unknown_labels(f'{PREFIX}index_entries{{topic=~".*", subscription="s"}}') == {"index_entries.subscription"}
    assert brackets_balance('a{b="("}[5m]')
    assert not brackets_balance("a{b[5m}]")
    assert not brackets_balance("(a")


def test_alerts_ask_for_known_metrics() -> None:
    assert not unknown_names(ALERTS.read_text())
    assert not unknown_labels(ALERTS.read_text())


def test_the_dashboard_asks_for_known_metrics() -> None:
    text = DASHBOARD.read_text()
    assert not unknown_names(text)
    for title, query in dashboard_queries():
        assert not unknown_labels(query), title
    # Nothing that is told stays unseen.
    seen = {re.sub(r"_(bucket|sum|count)$", "", name) for name in asked_names(text)}
    assert not {family.name for family in FAMILIES} - seen


@pytest.mark.parametrize("rule", alert_rules(), ids=lambda rule: rule["alert"])
def test_an_alert_says_what_it_means(rule: Rule) -> None:
    assert brackets_balance(rule["expr"])
    assert re.fullmatch(r"\d+[sm]", rule.get("for", "0s"))
    assert rule["labels"]["severity"] in ("critical", "warning")
    annotations = rule["annotations"]
    assert annotations["summary"]
    assert annotations["description"].count("{{") == annotations["description"].count("}}") >= 1
    name = rule["alert"]
    assert annotations["runbook_url"] == f"docs/operating.md#{name.lower()}"
    runbook = re.split(r"^#+ ", OPERATING.read_text().split(f"\n### {name}\n")[1], flags=re.MULTILINE)[0]
    for part in ("**Means:**", "**Look at:**", "**Do:**"):
        assert part in runbook, f"the runbook of {name} lacks {part}"


def test_every_runbook_is_of_an_alert() -> None:
    found = re.findall(r"^### (DelayBridge\w+)$", OPERATING.read_text(), re.MULTILINE)
    assert found == [rule["alert"] for rule in alert_rules()]


def test_panels_are_complete_and_beside_each_other() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in panels():
        place = panel["gridPos"]
        assert panel["type"] == "row" or (panel["description"] and panel["targets"]), panel["title"]
        assert place["x"] + place["w"] <= 24
        for cell in (
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        ):
            assert taken.setdefault(cell, panel["title"]) == panel["title"], f"{panel['title']} is upon {taken[cell]}"
    identifiers = [panel["id"] for panel in panels()]
    assert len(set(identifiers)) == len(identifiers)


def test_queries_use_the_variables_there_are() -> None:
    variables = {each["name"] for each in json.loads(DASHBOARD.read_text())["templating"]["list"]}
    for title, query in dashboard_queries():
        assert brackets_balance(query), title
        assert set(re.findall(r"\$(\w+)", query)) - {"__rate_interval"} <= variables, title


def test_grafana_finds_dashboard_and_data() -> None:
    provisioning = DEPLOY / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"]
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "delay-bridge.yml").read_text())["providers"]
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    assert source["url"] == "http://prometheus:9090"
    assert "prometheus" in services
    mounts = dict(each.split(":")[:2] for each in services["grafana"]["volumes"])
    assert mounts["./deploy/grafana/dashboards"] == provider["options"]["path"]
    assert mounts["./deploy/grafana/provisioning"] == "/etc/grafana/provisioning"
    chosen = json.loads(DASHBOARD.read_text())["templating"]["list"][0]
    assert (chosen["name"], chosen["current"]["value"]) == ("datasource", source["uid"])


def test_prometheus_scrapes_the_bridges_of_compose() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    assert config["rule_files"] == [ALERTS.name]
    job = next(each for each in config["scrape_configs"] if each["job_name"] == "delay-bridge")
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    assert [each.split(":")[0] for each in job["static_configs"][0]["targets"]] == ["bridge-1", "bridge-2"]
    mounted = {each["target"] for each in compose["services"]["prometheus"]["configs"]}
    assert job["authorization"]["credentials_file"] in mounted
    assert all('job="delay-bridge"' in rule["expr"] for rule in alert_rules() if "up{" in rule["expr"])


needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool here")


def promtool(*arguments: object) -> None:
    done = subprocess.run(
        ["promtool", *map(str, arguments)], capture_output=True, text=True, timeout=60, cwd=ALERTS.parent, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_promtool_accepts_the_configuration() -> None:
    promtool("check", "rules", ALERTS)
    promtool("check", "config", "--syntax-only", "prometheus.yml")


@needs_promtool
def test_alerts_fire_when_they_should() -> None:
    promtool("test", "rules", "alerts.test.yml")


def test_every_alert_is_tested() -> None:
    """That `alerts.test.yml` makes every rule fire, promtool or not."""
    fired = set(re.findall(r'alertname="(\w+)"', (ALERTS.parent / "alerts.test.yml").read_text()))
    assert fired == {rule["alert"] for rule in alert_rules()}


@needs_promtool
def test_promtool_accepts_the_queries_of_the_dashboard(tmp_path: Path) -> None:
    """As recording rules, the variables put in as Grafana does."""
    queries = [re.sub(r"\$(\w+)", ".*", query.replace("$__rate_interval", "1m")) for _, query in dashboard_queries()]
    rules = [{"record": f"panel:query:{number}", "expr": query} for number, query in enumerate(queries)]
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    promtool("check", "rules", file)
