"""Random histories of a classic group keep its promises at every step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.groups.classic.group import GroupState
from coordinator.groups.classic.requests import JoinAnswer
from tests.soak import SOAK

_EVENTS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "join new",
                "join old client",
                "join static",
                "rejoin",
                "rejoin",
                "sync",
                "sync",
                "sync leader",
                "heartbeat",
                "leave",
                "hang up",
                "advance",
                "advance",
                "reload",
            ]
        ),
        st.integers(0, 5),
    ),
    min_size=10,
    max_size=80,
)
_PROTOCOLS = ((("range", b"r"), ("sticky", b"s")), (("sticky", b"s"), ("range", b"r")))


class History:
    """Applies events to a `Driver` and checks what must hold after each."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self.clients: list[str] = []
        self.parked: set[int] = set()
        self.formed: dict[int, frozenset[str]] = {}
        self.reloads = 0

    def run(self, event: str, choice: int) -> None:
        driver = self.driver
        if event == "advance":
            driver.advance((10, 500, 3_000, 9_000, 12_000, 61_000)[choice])
        elif event == "reload":
            driver.reload()
            self.reloads += 1
            self.parked.clear()
            self.formed.clear()
        elif event == "hang up" and self.parked:
            token = sorted(self.parked)[choice % len(self.parked)]
            driver.hang_up(token)
            self.parked.discard(token)
        else:
            self._request(event, choice)
        self._settle()
        self._check()

    def _request(self, event: str, choice: int) -> None:
        driver, protocols = self.driver, _PROTOCOLS[choice % 2]
        known = [*driver.group.members, *driver.group.pending_members]
        one = known[choice % len(known)] if known else "stranger"
        member = driver.group.members.get(one)
        instance = member.group_instance_id if member is not None else None
        requests: dict[str, Callable[[], int]] = {
            "join new": lambda: driver.join(must_know_its_id=True, protocols=protocols),
            "join old client": lambda: driver.join(protocols=protocols),
            "join static": lambda: driver.join(
                group_instance_id=f"i{choice % 3}", protocols=protocols
            ),
            "rejoin": lambda: driver.join(one, group_instance_id=instance, protocols=protocols),
            "sync": lambda: driver.sync(one, group_instance_id=instance),
            "sync leader": self._leader_syncs,
        }
        if event == "heartbeat":
            driver.heartbeat(one)
        elif event == "leave":
            driver.leave(one)
        elif event in requests:
            self.parked.add(requests[event]())

    def _leader_syncs(self) -> int:
        driver = self.driver
        leader = driver.group.leader or "no leader"
        assigned = {member_id: member_id.encode() for member_id in [*driver.group.members, "x"]}
        member = driver.group.members.get(leader)
        instance = None if member is None else member.group_instance_id
        token: int = driver.sync(leader, group_instance_id=instance, assignments=assigned)
        return token

    def _settle(self) -> None:
        """Of parked requests, those answered; the generations that answers told of."""
        for token in sorted(self.parked & set(self.driver.answers)):
            self.parked.discard(token)
            answer = self.driver.answers[token]
            if isinstance(answer, JoinAnswer) and answer.members and not answer.skip_assignment:
                self._formed(answer)

    def _formed(self, answer: JoinAnswer) -> None:
        members = frozenset(member.member_id for member in answer.members)
        before = self.formed.setdefault(answer.generation_id, members)
        assert before == members or answer.generation_id == self.driver.group.generation_id

    def _check(self) -> None:
        driver = self.driver
        driver.check()
        assert driver.waiting - driver.gone == self.parked, "neither parked nor answered"
        if driver.group.generation_id == 0:
            assert not driver.records or self.reloads


@pytest.mark.parametrize("limits", [{}, {"initial_rebalance_delay_ms": 3_000}, {"size_max": 2}])
def test_every_history_keeps_the_promises(make_driver: Any, limits: dict[str, int]) -> None:
    @settings(max_examples=150 * SOAK, deadline=None)
    @given(_EVENTS)
    def histories(events: list[tuple[str, int]]) -> None:
        history = History(make_driver(**limits))
        for event, choice in events:
            history.run(event, choice)
        end(history)

    def end(history: History) -> None:
        """Time ends every wait: silent members are gone, and no request stays parked."""
        history.driver.advance(10 * 60_000)
        history._settle()
        assert not history.parked
        assert history.driver.group.state is GroupState.EMPTY
        assert history.driver.group.deadline_ms is None

    histories()
