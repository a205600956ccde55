"""`make containers`: builds the image with an engine of its own, and tries it.

    python -m tools.packages.containers        with an engine and a base image of its own
    BASE=python:3.11-slim python -m tools.packages.containers --engine unix:///var/run/docker.sock

Needs root, docker.io and mmdebstrap (`apt-get install docker.io mmdebstrap`). No registry of
images is asked: the base comes from Debian's packages (tools/packages/base.py), and Python's
packages are fetched by the pip outside, which knows the index. Two things take most of the time, so
they are done at once: the base, for which the engine is started, and the wheels.

Apache Kafka's container is tried with KAFKA_IMAGE, where that is set; else with the jars and the
Java of this machine, in the base.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from tools.packages.base import base_archive
from tools.packages.running import engine, run

ROOT = Path(__file__).resolve().parents[2]
IMAGE, BASE_IMAGE = "magnetar:latest", "magnetar-base:latest"
#: What the image may have beyond its base.
EXTRA_BYTES_MAX = 150_000_000
#: Paths of the repository that the Dockerfile copies, or reads.
_CONTEXT = ("pyproject.toml", "constraints.txt", "README.md", "LICENSE", "CHANGELOG.md")
_SOURCES = ("wire", "coordinator", "logstore", "magnetar", "tools/packages")


@contextmanager
def timed(part: str) -> Iterator[None]:
    """Print how long a part took."""
    began = time.monotonic()
    yield
    print(f"containers: {part}: {time.monotonic() - began:.0f} s", flush=True)


def gather_context(context: Path) -> str:
    """Copy what the Dockerfile takes, with all wheels; return the path of magnetar's there."""
    for folder in _SOURCES:
        shutil.copytree(ROOT / folder, context / folder, ignore=shutil.ignore_patterns("*.pyc"))
    for name in _CONTEXT:
        shutil.copy(ROOT / name, context / name)
    wheels = context / "tools" / "packages" / "wheels"
    with timed("wheels"):
        run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", wheels, cwd=ROOT)
        (own,) = wheels.glob("magnetar-*.whl")
        pip = (sys.executable, "-m", "pip", "download", "-q", "-c", ROOT / "constraints.txt")
        run(*pip, "--only-binary", ":all:", "-d", wheels, f"{own}[cluster,otel,security,telemetry]")
    return str(own.relative_to(context))


def build(context: Path, base: str, wheel: str) -> None:
    """Build the image of a wheel in the context, and of those beside it."""
    arguments = (f"BASE={base}", "PIP_NO_INDEX=1", f"MAGNETAR=./{wheel}")
    given = [word for each in arguments for word in ("--build-arg", each)]
    dockerfile = context / "tools" / "packages" / "Dockerfile"
    with timed("image"):
        run("docker", "build", "-q", "-t", IMAGE, *given, "-f", dockerfile, context)


def import_base(place: Path) -> str:
    """Make an image of Debian with Python; return its name."""
    with timed("base"):
        archive = base_archive(place)
        run("docker", "import", archive, BASE_IMAGE)
    return BASE_IMAGE


def size_bytes(image: str) -> int:
    return int(run("docker", "image", "inspect", "--format", "{{.Size}}", image))


def check_size(base: str) -> None:
    """End the program if the image has too much beyond its base."""
    of_base, extra = size_bytes(base), size_bytes(IMAGE) - size_bytes(base)
    print(f"{IMAGE}: {extra / 1e6:.0f} MB beyond its base of {of_base / 1e6:.0f} MB")
    if extra > EXTRA_BYTES_MAX:
        raise SystemExit(f"more than {EXTRA_BYTES_MAX / 1e6:.0f} MB")


def try_image(place: Path, address: str, wheel: Future[str]) -> None:
    """Build the image with this engine, look at its size, and run the tests."""
    os.environ["DOCKER_HOST"] = address
    # Its helper comes from a registry; containers are removed here.
    os.environ["TESTCONTAINERS_RYUK_DISABLED"] = "true"
    base = os.environ.get("BASE") or import_base(place)
    build(place / "context", base, wheel.result())
    check_size(base)
    tests = ROOT / "tools" / "packages" / "try_containers.py"
    with timed("tests"):
        print(run(sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", tests, cwd=ROOT))


def main() -> None:
    """Build, and run the tests of containers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", help="the address of an engine that runs")
    given = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="containers-") as name, ThreadPoolExecutor(1) as thread:
        place = Path(name)
        wheel = thread.submit(gather_context, place / "context")
        if given.engine:
            try_image(place, given.engine, wheel)
        else:
            with engine(place) as address:
                try_image(place, address, wheel)
                for container in run("docker", "ps", "-aq").split():
                    run("docker", "rm", "-f", container)
            # What the engine has mounted is gone with it; what is left is only files.
            with suppress(OSError):
                shutil.rmtree(place / "data")
    print(f"containers: {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
