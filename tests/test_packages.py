"""What is shipped: a wheel that serves in a clean environment, and files for services and clusters.

The build and the clean environment are made once. The environment takes its packages from the
index, as a user's does.
"""

from __future__ import annotations

import configparser
import re
import shlex
import signal
import socket
import subprocess
import sys
import tarfile
import venv
from importlib import metadata
from pathlib import Path
from zipfile import ZipFile

import pytest
import yaml
from packaging.specifiers import SpecifierSet

from tests.served import served_with
from tools.packages.write import files

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ROOT / "tools" / "packages"
SHARED = (
    "share/bash-completion/completions/magnetar",
    "share/zsh/site-functions/_magnetar",
    "share/fish/vendor_completions.d/magnetar.fish",
    "share/man/man1/magnetar.1",
)
#: The packages of a wheel, in megabytes, and the seconds in which it answers --help: with room for
#: a busy machine. docs/packages.md has what was measured.
WHEEL_MB_MAX = 2.0


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    done = subprocess.run(
        [str(each) for each in command], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the wheel and the source distribution."""
    dist = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-d", dist)
    return dist


def wheel_in(dist: Path) -> Path:
    (wheel,) = dist.glob("*.whl")
    return wheel


def test_every_pinned_version_can_be_installed_on_the_oldest_python_that_we_take() -> None:
    """A distribution's Python 3.11 may be the second release of 3.11."""
    pinned = [line.partition("==")[0] for line in (ROOT / "constraints.txt").read_text().split()]
    wanted = {name: _wanted_python(name) for name in pinned}
    assert len(wanted) > 100
    assert {name: found for name, found in wanted.items() if not found.contains("3.11.0")} == {}


def _wanted_python(distribution: str) -> SpecifierSet:
    try:
        wanted = metadata.metadata(distribution).get_all("Requires-Python") or []
    except metadata.PackageNotFoundError:  # Another system's, or an older Python's.
        return SpecifierSet()
    return SpecifierSet(",".join(wanted))


def test_the_wheel_has_the_packages_and_what_shells_and_man_read(built: Path) -> None:
    wheel = wheel_in(built)
    assert wheel.stat().st_size < WHEEL_MB_MAX * 1e6
    names = ZipFile(wheel).namelist()
    roots = {name.split("/")[0] for name in names}
    folders = {"wire", "coordinator", "logstore", "magnetar"}
    assert {root for root in roots if ".d" not in root} == folders
    for folder in folders:
        assert f"{folder}/py.typed" in names
    assert {path for path in SHARED if any(name.endswith(path) for name in names)} == set(SHARED)


def test_the_source_distribution_builds_the_same_wheel(built: Path, tmp_path: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as source:
        source.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.iterdir()
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path / "d", cwd=folder)
    again = ZipFile(wheel_in(tmp_path / "d")).namelist()
    assert sorted(again) == sorted(ZipFile(wheel_in(built)).namelist())


@pytest.mark.timeout(600)
def test_the_wheel_serves_in_a_clean_environment(built: Path, tmp_path: Path) -> None:
    home = tmp_path / "venv"
    venv.create(home)
    python = home / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python)
    run(*pip, "install", "-q", "-c", ROOT / "constraints.txt", wheel_in(built), cwd=tmp_path)
    magnetar = home / "bin" / "magnetar"
    assert run(magnetar, "--version", cwd=tmp_path).startswith("magnetar ")
    assert (home / SHARED[0]).exists() and (home / SHARED[-1]).exists()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        broker = subprocess.Popen(
            [magnetar, "serve", "--listen", "127.0.0.1:0", "--data-dir", tmp_path / "data"],
            cwd=tmp_path,
            env={"NOTIFY_SOCKET": str(tmp_path / "notify")},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            assert broker.stdout is not None
            found = re.search(r"ready on (\S+) after", broker.stdout.readline())
            assert found is not None
            assert manager.recv(1000).decode().splitlines()[0] == "READY=1"
            to = ("--bootstrap", found[1])
            run(magnetar, "topics", "create", "a", *to, cwd=tmp_path)
            run(magnetar, "produce", "a", "constraints.txt", *to)
            assert "magnetar" in run(magnetar, "cluster", "--help", cwd=tmp_path)
            ends = run(magnetar, "offsets", "list", "a", "--json", *to, cwd=tmp_path)
            assert '"offset": 1' in ends
            broker.send_signal(signal.SIGTERM)
            assert manager.recv(1000).decode().splitlines()[0] == "STOPPING=1"
            assert broker.wait(60) == 0
        finally:
            broker.kill()
            broker.communicate()


def test_the_man_page_and_the_completions_are_those_of_the_commands() -> None:
    for path, text in files().items():
        assert path.read_text() == text, "run python -m tools.packages.write"


# Services and clusters.


def test_the_unit_of_systemd_starts_what_exists() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # names are case-sensitive
    unit.read(PACKAGES / "magnetar.service")
    service = unit["Service"]
    assert service["Type"] == "notify"
    env, command, serve, *arguments = shlex.split(service["ExecStart"])
    assert (env, command, serve) == ("/usr/bin/env", "magnetar", "serve")
    served_with(arguments)
    # Where its hardening lets it write is where its data is.
    assert service["ProtectSystem"] == "strict"
    assert f"/var/lib/{service['StateDirectory']}" in arguments


def test_the_unit_of_a_node_starts_what_exists() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # names are case-sensitive
    unit.read(PACKAGES / "magnetar-node.service")
    service = unit["Service"]
    assert service["Type"] == "notify"
    _, command, serve, *arguments = shlex.split(service["ExecStart"])
    assert (command, serve) == ("magnetar", "serve")
    served_with(arguments)
    assert f"/var/cache/{service['CacheDirectory']}" in arguments
    name, _ = service["LoadCredential"].split(":")
    assert f"${{CREDENTIALS_DIRECTORY}}/{name}" in arguments


def test_the_compose_file_of_a_cluster_starts_what_exists() -> None:
    services = yaml.safe_load((PACKAGES / "compose-cluster.yaml").read_text())["services"]
    nodes = [service for name, service in services.items() if name.startswith("node-")]
    assert len(nodes) == 3
    for number, node in enumerate(nodes, 1):
        serve, *arguments = node["command"]
        assert serve == "serve" and f"--node-id={number}" in arguments
        served_with(arguments)
        assert node["hostname"] == f"node-{number}" and not node.get("volumes")


def test_the_compose_file_and_the_image_start_what_exists() -> None:
    service = yaml.safe_load((PACKAGES / "compose.yaml").read_text())["services"]["magnetar"]
    serve, *arguments = service["command"]
    assert serve == "serve"
    served_with(arguments)
    dockerfile = (PACKAGES / "Dockerfile").read_text()
    (command,) = re.findall(r"^CMD (\[\"serve.*\])$", dockerfile, re.MULTILINE)
    served_with(yaml.safe_load(command)[1:])
    for source in re.findall(r"^COPY ([^-].*) \S+$", dockerfile, re.MULTILINE):
        assert all((ROOT / each).exists() for each in source.split())
    assert "USER magnetar" in dockerfile
