"""Members that say anything, to a group in any state: nothing but refusals, and nothing broken."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.soak import SOAK

_LIMITS: list[dict[str, int]] = [
    {},
    {"initial_rebalance_delay_ms": 1},
    {"initial_rebalance_delay_ms": 3_000},
    {"size_max": 1},
    {"size_max": 3},
    {"pending_members_max": 2},
]
_NAMES = ["range", "sticky", "roundrobin"]


class Hostile:
    """Clients that mix up ids, instances, generations and protocols."""

    def __init__(self, driver: Any, seed: int) -> None:
        self.driver = driver
        self.random = random.Random(seed)

    def step(self) -> None:
        driver, choose = self.driver, self.random.choice
        group = driver.group
        known = [*group.members, *group.pending_members, "stranger", ""]
        member_id = choose(known)
        instance = choose([None, None, None, "a", "b"])
        if member_id in group.members and self.random.random() < 0.6:
            instance = group.members[member_id].group_instance_id
        event = choose(["join", "join", "sync", "assign", "heartbeat", "leave", "time", "gone"])
        if event == "join":
            self._join(member_id, instance)
        elif event == "sync":
            generation_id = choose([group.generation_id] * 5 + [0, 99])
            protocol_name = choose([None, group.protocol_name, "unknown"])
            driver.sync(
                member_id, generation_id, group_instance_id=instance, protocol_name=protocol_name
            )
        elif event == "assign" and group.leader is not None:
            instance = group.members[group.leader].group_instance_id
            assigned = dict.fromkeys(known, b"all")
            driver.sync(group.leader, group_instance_id=instance, assignments=assigned)
        elif event == "heartbeat":
            driver.heartbeat(member_id, instance=instance)
        elif event == "leave":
            driver.leave(*self.random.sample(known, min(len(known), 2)), instance=instance)
        elif event == "gone" and driver.tokens:
            driver.hang_up(self.random.randint(1, driver.tokens))
        elif event == "time":
            driver.advance(choose([0, 1, 10, 999, 5_000, 70_000]))
            if self.random.random() < 0.1:
                driver.reload()
        driver.check()

    def _join(self, member_id: str, instance: str | None) -> None:
        choose, names = self.random.choice, self.random.sample(_NAMES, self.random.randint(0, 3))
        self.driver.join(
            member_id,
            group_instance_id=instance,
            protocols=tuple((name, choose([b"1", b"2"])) for name in ["range", *names][-3:]),
            protocol_type=choose(["consumer"] * 8 + ["connect", ""]),
            rebalance_timeout_ms=choose([0, 1, 1_000, 60_000, 2**31 - 1]),
            session_timeout_ms=choose([1, 1_000, 10_000]),
            must_know_its_id=choose([False, True]),
            can_skip_assignment=choose([False, True]),
        )


@settings(max_examples=150 * SOAK, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(_LIMITS))
def test_no_client_can_break_a_group(make_driver: Any, seed: int, limits: dict[str, int]) -> None:
    hostile = Hostile(make_driver(**limits), seed)
    for _ in range(60):
        hostile.step()
