"""`make containers`: builds the image with an engine of its own, and tries it.

    python -m tools.packages.containers        with an engine and a base image of its own
    BASE=python:3.11-slim python -m tools.packages.containers --engine unix:///var/run/docker.sock

Needs root, docker.io and debootstrap (`apt-get install docker.io debootstrap`). No registry of
images is asked: the base comes from Debian's packages, and Python's packages are fetched by the pip
outside, which knows the index.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
IMAGE, BASE_IMAGE = "magnetar:latest", "magnetar-base:latest"
#: What the image may have beyond its base.
EXTRA_BYTES_MAX = 150_000_000
_SUITE = "bookworm"
_PACKAGES = "python3,python3-venv"
_ENGINE_STARTS_WITHIN_S = 60
_SOURCES = ("wire", "coordinator", "logstore", "magnetar", "tools/packages")
_FILES = ("pyproject.toml", "constraints.txt", "README.md", "LICENSE", "CHANGELOG.md")


def run(*command: str | Path, env: Mapping[str, str] | None = None) -> str:
    """Return what a command prints. Ends the program if it fails."""
    print("$", *command, file=sys.stderr)
    done = subprocess.run(
        [str(each) for each in command],
        env={**os.environ, **(env or {})},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{command[0]} failed: {done.stdout[-2000:]}")
    return done.stdout


@contextmanager
def engine(place: Path) -> Iterator[str]:
    """Run an engine on a socket and a data directory of its own; yield its address."""
    address = f"unix://{place}/docker.sock"
    with (place / "engine.log").open("w") as log:
        process = subprocess.Popen(
            ["dockerd", "--host", address, "--data-root", f"{place}/data"]
            + ["--exec-root", f"{place}/exec", "--pidfile", f"{place}/pid"],
            stdout=log,
            stderr=log,
        )
        try:
            deadline = time.monotonic() + _ENGINE_STARTS_WITHIN_S
            while not (place / "docker.sock").exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    text = (place / "engine.log").read_text()[-2000:]
                    raise SystemExit(f"dockerd does not start: {text}")
                time.sleep(0.1)  # Another process makes the socket.
            yield address
        finally:
            process.terminate()
            process.wait()


def make_base(place: Path) -> None:
    """Make an image of Debian with Python, from packages."""
    sites = run("apt-get", "indextargets", "--format", "$(SITE)").split()
    root = place / "base"
    include = f"--include={_PACKAGES}"
    run("debootstrap", "--variant=minbase", include, _SUITE, root, sites[0])
    for folder in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man"):
        shutil.rmtree(root / folder)
    archive = place / "base.tar"
    run("tar", "-C", root, "-cf", archive, ".")
    run("docker", "import", archive, BASE_IMAGE)
    archive.unlink()


def build(place: Path, base: str) -> None:
    """Build the image from a copy of the sources, with Python's packages beside them."""
    context = place / "context"
    for folder in _SOURCES:
        shutil.copytree(ROOT / folder, context / folder, ignore=shutil.ignore_patterns("*.pyc"))
    for name in _FILES:
        shutil.copy(ROOT / name, context / name)
    wheels = context / "tools" / "packages" / "wheels"
    wanted = [f"{ROOT}[security,telemetry]", "hatchling"]
    pip = (sys.executable, "-m", "pip", "download", "-q", "-c", ROOT / "constraints.txt")
    run(*pip, "--only-binary", ":all:", "-d", wheels, *wanted)
    for own in wheels.glob("magnetar-*"):
        own.unlink()
    dockerfile = context / "tools" / "packages" / "Dockerfile"
    offline = ("--build-arg", f"BASE={base}", "--build-arg", "PIP_NO_INDEX=1")
    run("docker", "build", "-q", "-t", IMAGE, *offline, "-f", dockerfile, context)


def size_bytes(image: str) -> int:
    return int(run("docker", "image", "inspect", "--format", "{{.Size}}", image))


def check_size(base: str) -> None:
    """End the program if the image has too much beyond its base."""
    extra = size_bytes(IMAGE) - size_bytes(base)
    print(f"{IMAGE}: {extra / 1e6:.0f} MB beyond its base")
    if extra > EXTRA_BYTES_MAX:
        raise SystemExit(f"more than {EXTRA_BYTES_MAX / 1e6:.0f} MB")


def main() -> None:
    """Build, and run the tests of containers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", help="the address of an engine that runs")
    given = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="containers-") as name:
        place = Path(name)
        if given.engine:
            try_image(place, given.engine)
        else:
            with engine(place) as address:
                try_image(place, address)
                for container in run("docker", "ps", "-aq").split():
                    run("docker", "rm", "-f", container)
            # What the engine has mounted is gone with it; what is left is only files.
            with suppress(OSError):
                shutil.rmtree(place / "data")
    print(f"containers: {time.monotonic() - began:.0f} s")


def try_image(place: Path, address: str) -> None:
    """Build the image with this engine, look at its size, and run the tests."""
    os.environ["DOCKER_HOST"] = address
    # Its helper comes from a registry; containers are removed here.
    os.environ["TESTCONTAINERS_RYUK_DISABLED"] = "true"
    base = os.environ.get("BASE", "")
    if not base:
        make_base(place)
        base = BASE_IMAGE
    build(place, base)
    check_size(base)
    tests = ROOT / "tools" / "packages" / "try_containers.py"
    print(run(sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", tests))


if __name__ == "__main__":
    main()
