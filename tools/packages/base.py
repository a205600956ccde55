"""The base of our image where no registry of images is reached: Debian's packages, and Python.

mmdebstrap unpacks with apt and dpkg as a whole what debootstrap unpacks package by package: a third
of the CPU time. What is made is kept for a week in the user's cache, so that a machine that builds
often makes it once; a machine without one makes it.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from tools.packages.running import run

#: The release whose Python is the one that this project is developed with.
_SUITE = "bookworm"
#: libstdc++6 is what wheels of C++ expect of a system; passwd has useradd.
_PACKAGES = "python3,python3-venv,libstdc++6,passwd"
_LEFT_OUT = ("doc", "man", "locale", "info")
#: By then Debian may have mended something in it.
_KEPT_S = 7 * 24 * 3600


def cached_archive() -> Path:
    """Return where this user's cache has the base, whether it is there or not."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "magnetar" / f"base-{_SUITE}.tar"


def base_archive(place: Path) -> Path:
    """Return the base as an archive of its files; makes it in `place`, where the cache has none."""
    cached = cached_archive()
    if cached.exists() and time.time() - cached.stat().st_mtime < _KEPT_S:
        return cached
    made = place / "base.tar"
    site = run("apt-get", "indextargets", "--format", "$(SITE)").split()[0]
    # No apt in it: what is installed comes from the wheels.
    left_out = [f"--dpkgopt=path-exclude=/usr/share/{folder}/*" for folder in _LEFT_OUT]
    variant = ("--quiet", "--variant=essential", f"--include={_PACKAGES}")
    run("mmdebstrap", *variant, *left_out, _SUITE, made, site)
    cached.parent.mkdir(parents=True, exist_ok=True)
    # Under a name of its own first: another build must not read half of it.
    half = cached.with_suffix(f".{os.getpid()}")
    shutil.move(made, half)
    half.replace(cached)
    return cached
