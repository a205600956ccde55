"""What is told of a broker that ends."""

from __future__ import annotations

import pytest

from logstore.disk.files import StorageFailure
from logstore.remote.commit_store import NodeFenced
from magnetar.runtime.failing import Failing


@pytest.mark.parametrize(
    "failure, has_traceback",
    [
        (NodeFenced("node 2 was taken over"), False),
        (StorageFailure("the disk is away"), True),
        (AssertionError("each append was waited for"), True),
    ],
)
def test_only_what_nothing_foresees_has_a_traceback(
    failure: Exception, has_traceback: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    ended: list[BaseException] = []
    try:
        raise failure
    except Exception as raised:
        Failing(ended.append).fail(raised)
    assert ended == [failure]
    told = capsys.readouterr().err
    assert str(failure) in told
    assert ("Traceback" in told) == has_traceback
