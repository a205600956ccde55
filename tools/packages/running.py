"""Programs that `make containers` runs: each ends it with a message where it fails."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_ENGINE_STARTS_WITHIN_S = 60


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """Return what a command prints. Ends the program if it fails, or is missing."""
    print("$", *command, file=sys.stderr, flush=True)
    try:
        done = subprocess.run(
            [str(each) for each in command], cwd=cwd, stdout=subprocess.PIPE, text=True, check=False
        )
    except FileNotFoundError:
        raise SystemExit(
            f"there is no {command[0]}: apt-get install docker.io mmdebstrap"
        ) from None
    if done.returncode:
        raise SystemExit(f"{command[0]} failed: {done.stdout[-4000:]}")
    return done.stdout


@contextmanager
def engine(place: Path) -> Iterator[str]:
    """Run an engine on a socket and a data directory of its own; yield its address."""
    address = f"unix://{place}/docker.sock"
    with (place / "engine.log").open("w") as log:
        try:
            process = subprocess.Popen(
                ["dockerd", "--host", address, "--data-root", f"{place}/data"]
                + ["--exec-root", f"{place}/exec", "--pidfile", f"{place}/pid"],
                stdout=log,
                stderr=log,
            )
        except FileNotFoundError:
            raise SystemExit("there is no dockerd: apt-get install docker.io") from None
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
