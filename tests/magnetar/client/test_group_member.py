"""What a leader assigns."""

from __future__ import annotations

from magnetar.client.group_member import assign_by_range


def test_ranges_are_shared_out_topic_by_topic() -> None:
    wanted = {"a": ["y", "x"], "b": ["y"], "c": ["x", "y", "z"]}
    assert assign_by_range(wanted, {"a": 3, "b": 1, "c": 2}) == {
        "x": [("a", 0), ("a", 1), ("c", 0)],
        "y": [("a", 2), ("b", 0), ("c", 1)],
        "z": [],
    }
