"""The alarm of deadlines: in time, and after a standstill not before clients were heard."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from magnetar.runtime.alarm import HEARING_MS, LATE_MS_MAX, Alarm
from tests.magnetar.served_broker import Client, ServedBroker
from tests.simulation.simulated_loop import SimulatedLoop
from wire.error_code import ErrorCode
from wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

SESSION_MS = 2_000


@pytest.mark.parametrize(
    ("late_ms", "rings_after_ms"),
    [(0, 0), (LATE_MS_MAX - 1, 0), (LATE_MS_MAX + 1, HEARING_MS), (3_600_000, HEARING_MS)],
)
def test_an_alarm_that_comes_much_too_late_rings_a_moment_later(
    late_ms: int, rings_after_ms: int
) -> None:
    loop = SimulatedLoop()
    rings: list[float] = []

    async def stand_still() -> float:
        Alarm(lambda: rings.append(loop.time())).set(due_ms=1_000, now_ms=0)
        loop.now_s += 1 + late_ms / 1000
        went_on_s = loop.time()
        await asyncio.sleep(10)
        return went_on_s

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        went_on_s = runner.run(stand_still())
    assert rings == [pytest.approx(went_on_s + rings_after_ms / 1000)]


def test_who_spoke_while_the_broker_was_stopped_is_heard_before_anyone_is_given_up(
    tmp_path: Path,
) -> None:
    settings = {"group.min.session.timeout.ms": "1"}
    with ServedBroker(tmp_path, settings) as broker, Client(broker.port) as member:
        join = JoinGroupRequest(
            group_id="group",
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=SESSION_MS,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
        joined = member.call(join, JoinGroupResponse, 3)
        me: dict[str, Any] = {
            "group_id": "group",
            "member_id": joined.member_id,
            "generation_id": 1,
        }
        assert member.call(SyncGroupRequest(**me), SyncGroupResponse, 3).error_code == 0
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            member.send_request(HeartbeatRequest(**me), 3)
            # A session must pass while the process stands still: nothing else tells that it has.
            time.sleep((SESSION_MS + 2 * LATE_MS_MAX) / 1000)
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        assert member.receive(HeartbeatResponse, 3).error_code == ErrorCode.NONE
