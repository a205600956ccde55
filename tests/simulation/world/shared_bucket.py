"""The bucket of a simulated cluster: slow, lossy, and away for seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from random import Random

from logstore.disk.files import Buffer
from logstore.remote.offload import PREFIX, Pace
from logstore.remote.references import decode
from tests.logstore.simulated_objects import SimulatedObjects
from tests.simulation.world.process import Scheduler

#: So little that the batches of a history become several objects, and an object several references.
OBJECT_BYTES, REFERENCE_BYTES = 2_000, 600
#: How long batches wait for company.
AGE_MS = 1_500
#: A node puts an object and commits its references in less than the time between two sweeps.
PACE = Pace(interval_s=0.3, retry_s=(0.5, 2.0), first_sweep_ms=1_000, sweep_interval_ms=4_000)
#: How long a request is on its way, and how long an answer is.
_ON_WAY_S = (0.0, 0.0005, 0.003, 0.03, 0.3)
_LOST_PROBABILITIES = (0.0, 0.02, 0.1)
#: The bucket is away for whole periods, of which so many may be.
_AWAY_S = 4.0
_PERIODS = 6
_AWAY_PROBABILITIES = (0.0, 0.0, 0.4)


class SharedBucket(SimulatedObjects):
    """What outlives the nodes of a cluster that names a bucket."""

    def __init__(self, scheduler: Scheduler, random: Random) -> None:
        super().__init__()
        self._scheduler = scheduler
        self._random = random
        self._lost = random.choice(_LOST_PROBABILITIES)
        away = random.choice(_AWAY_PROBABILITIES)
        self._away = [random.random() < away for _ in range(_PERIODS)]
        #: Once it is calm, no request and no answer is lost.
        self.is_calm = False
        #: Told of each object of batches that is about to be written.
        self.on_put: Callable[[str], None] = lambda key: None
        self.on_way = self._pause
        self.loses_request = self._loses_request
        self.loses_answer = self._loses

    async def put(self, key: str, data: Buffer) -> None:
        if key.startswith(f"{PREFIX}/"):
            self.on_put(key)
        await super().put(key, data)

    async def _pause(self) -> None:
        await asyncio.sleep(self._random.choice(_ON_WAY_S))

    def _loses(self) -> bool:
        return not self.is_calm and self._random.random() < self._lost

    def _loses_request(self) -> bool:
        period = int(self._scheduler.now_s // _AWAY_S)
        is_away = period < _PERIODS and self._away[period]
        return self._loses() or (is_away and not self.is_calm)

    def missing(self, references: Iterable[bytes]) -> list[str]:
        """Return what is wrong, at any time, where the database has these references."""
        gone = {decode(data).object_key for data in references} - self.objects.keys()
        return [f"missing: {key} is named, and gone" for key in sorted(gone)]

    def left_behind(self, references: Iterable[bytes]) -> list[str]:
        """Return what is wrong where no sweep is due."""
        of_batches = {key for key in self.objects if key.startswith(f"{PREFIX}/")}
        unnamed = of_batches - {decode(data).object_key for data in references}
        return [f"left behind: nothing names {key}" for key in sorted(unnamed)]
