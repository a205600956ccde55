"""The cookbook of docs/testing_your_application.md: every recipe is a test, and runs as one.

So does the test that the README shows.

Its blocks are one file of tests, as a reader would write it, in a project where magnetar is
installed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
PAGE = ROOT / "docs" / "testing_your_application.md"
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
#: Half a minute on idle cores.
_TIMEOUT_S = 600


@pytest.mark.timeout(_TIMEOUT_S + 60)
def test_every_recipe_passes(tmp_path: Path) -> None:
    blocks = _BLOCK.findall(PAGE.read_text())
    blocks += [block for block in _BLOCK.findall(README.read_text()) if "def test_" in block]
    recipes = tmp_path / "test_recipes.py"
    recipes.write_text("\n\n".join(blocks))
    # As pip would install it: the plugin comes by its entry point, and by nothing else.
    installed = tmp_path / "installed" / "recipes-1.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: recipes\nVersion: 1\n")
    (installed / "entry_points.txt").write_text("[pytest11]\nmagnetar = magnetar.testing.plugin\n")
    path = os.pathsep.join([str(ROOT), str(installed.parent), os.environ.get("PYTHONPATH", "")])
    # Without the plugins of this project's own tests.
    without = [
        word for name in ("asyncio", "randomly", "cacheprovider") for word in ("-p", f"no:{name}")
    ]
    options = ["-q", "--durations=8", "-W", "error", *without]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(recipes)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    # Two of one name would be one.
    names = re.findall(r"^ *def (test_\w+)", recipes.read_text(), re.MULTILINE)
    assert len(names) == len(set(names))
    assert len(names) >= 20
