"""Files under an overlay stay as they are, and read as if they had been changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.disk.files import DiskFiles
from logstore.disk.overlay import OverlayFiles
from tests.logstore.simulated_disk import SimulatedDisk

_CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 40), st.binary(min_size=1, max_size=12)),
        st.tuples(st.just("truncate"), st.integers(0, 50), st.just(b"")),
    ),
    max_size=12,
)


@given(st.binary(max_size=30), _CHANGES)
def test_it_reads_as_a_file_that_was_changed(
    content: bytes, changes: list[tuple[str, int, bytes]]
) -> None:
    disk = SimulatedDisk()
    disk.make_directory("d")
    disk.open("d/f", create=True).write((content,), 0)
    overlay, expected = OverlayFiles(disk).open("d/f"), bytearray(content)
    for kind, position, data in changes:
        if kind == "truncate":
            overlay.truncate(position)
            expected = expected[:position].ljust(position, b"\0")
        else:
            overlay.write((data,), position)
            expected = expected.ljust(position, b"\0")
            expected[position : position + len(data)] = data
        assert overlay.size() == len(expected)
        assert overlay.read(100, 0) == expected
        assert overlay.read(7, 3) == expected[3:10]
    below = disk.open("d/f")
    assert below.read(below.size(), 0) == content


def test_names_change_above_alone(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    below = DiskFiles(str(tmp_path))
    files = OverlayFiles(below)
    files.unlink(f"{tmp_path}/a")
    files.open(f"{tmp_path}/c", create=True).write((b"c",), 0)
    files.rename(f"{tmp_path}/b", f"{tmp_path}/a2")
    assert files.list(str(tmp_path)) == ["a2", "c"]
    assert files.facts(f"{tmp_path}/c").size_bytes == 1
    assert files.open(f"{tmp_path}/a2").read(9, 0) == b"b"
    assert not files.exists(f"{tmp_path}/a")
    with pytest.raises(FileNotFoundError):
        files.open(f"{tmp_path}/b")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
    below.close()
