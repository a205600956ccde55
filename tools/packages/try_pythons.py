"""`make pythons`: the wheel on several Pythons: installed with its extras, serving a transaction.

    make pythons PYTHONS="python3.12 python3.14"
    make pythons PYTHONS="python3.12 python3.14" TESTS=tests

Each gets a clean environment, the wheel, what it brings, and confluent-kafka, with which the first
program of README.md consumes, processes and produces in one transaction. With tests, these run in
the environment too, which then has every extra. An interpreter that is missing is an error.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

from tools.packages.running import run

ROOT = Path(__file__).resolve().parents[2]
_EXTRAS = "console,otel,security,telemetry,testing"
_SERVED = """
import sys
from magnetar.testing import start_broker

with start_broker() as broker:
    program = open(sys.argv[1]).read()
    exec(program.replace("127.0.0.1:9092", broker.bootstrap_servers))
"""


def try_python(python: str, wheel: Path, place: Path, tests: list[str]) -> str:
    """Return what was tried on this Python. Ends the program where it fails."""
    began = time.monotonic()
    home = place / python.replace("/", "-")
    run(python, "-m", "venv", home)
    inside = home / "bin" / "python"
    extras = _every_extra() if tests else _EXTRAS
    pip = (inside, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt")
    run(*pip, f"{wheel}[{extras}]", "confluent-kafka", cwd=place)
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    program = place / "program.py"
    program.write_text(blocks[0])
    said = run(inside, "-c", _SERVED, program, cwd=place)
    if "3 words, each exactly once" not in said:
        raise SystemExit(f"{python}: {said}")
    version = run(inside, "-c", "import platform; print(platform.python_version())").strip()
    tried = "a transaction"
    if tests:
        tried += "; " + _tested(inside, tests)
    return f"{version}: {tried}; {time.monotonic() - began:.0f} s"


def _every_extra() -> str:
    with (ROOT / "pyproject.toml").open("rb") as file:
        return ",".join(tomllib.load(file)["project"]["optional-dependencies"])


def _tested(python: Path, tests: list[str]) -> str:
    """Return pytest's last line. Ends the program where a test fails."""
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-n", "2", *tests],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.stdout)
    return done.stdout.strip().splitlines()[-1]


def main() -> None:
    """Try each Python that is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pythons", nargs="+", help="interpreters, by name or path")
    parser.add_argument("--tests", nargs="*", default=[], help="what pytest is to run on each")
    given = parser.parse_args()
    # What is tried is the wheel, and not what lies here.
    os.environ.pop("PYTHONPATH", None)
    with tempfile.TemporaryDirectory(prefix="pythons-") as name:
        place = Path(name)
        run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", place, cwd=ROOT)
        (wheel,) = place.glob("*.whl")
        for python in given.pythons:
            print(try_python(python, wheel, place, given.tests), flush=True)


if __name__ == "__main__":
    main()
