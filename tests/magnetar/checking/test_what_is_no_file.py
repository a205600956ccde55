"""What stands in a file's place and is none is a finding, wherever it stands: the check goes on."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import chdir, closing, contextmanager
from pathlib import Path

import pytest

from magnetar.checking.run import check_directory
from tests.magnetar.checking.damages import flip, make
from tests.magnetar.checking.test_check_and_repair import findings


def _socket(path: Path) -> None:
    # By its name alone: the path of a socket may have some hundred bytes.
    with chdir(path.parent), closing(socket.socket(socket.AF_UNIX)) as bound:
        bound.bind(path.name)


KINDS: dict[str, Callable[[Path], None]] = {
    "a directory": Path.mkdir,
    "a pipe": os.mkfifo,
    "a socket": _socket,
    "a link to itself": lambda path: path.symlink_to(path.name),
}
#: Without it no command has the directory.
_UNTOLD = {".lock"}


@contextmanager
def put(path: Path, kind: str) -> Iterator[None]:
    """Put something else in the place of a file or directory, for a while."""
    aside = path.with_name("aside")
    path.rename(aside)
    KINDS[kind](path)
    try:
        yield
    finally:
        shutil.rmtree(path) if kind == "a directory" else path.unlink()
        aside.rename(path)


@pytest.fixture(scope="module", params=["stopped", "killed"])
def data(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kinds") / "data"
    make(path, killed=request.param == "killed")
    flip(path / "others-0" / f"{0:020d}.log", 80)
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_a_check_names_what_is_no_file_and_goes_on(data: Path, kind: str) -> None:
    for path in [*data.iterdir(), *(data / "orders-0").iterdir()]:
        if path.name in _UNTOLD or (path.is_dir() and kind == "a directory"):
            continue
        name = str(path.relative_to(data))
        with put(path, kind):
            found = findings(data)
        assert any(name in f"{each['path']} {each['problem']}" for each in found), (name, found)
        if path.name != "others-0":
            assert any(each["path"].startswith("others-0/") for each in found), (name, found)


def test_without_the_directories_of_its_nodes_nothing_is_checked(data: Path) -> None:
    os.mkfifo(data / "nodes")
    with pytest.raises(NotADirectoryError, match="nodes"):
        next(check_directory(data, lambda _: None))
    (data / "nodes").unlink()
