"""What happens to the broker of a history, drawn from its seed: crashes, stops, clocks, network."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from random import Random

from logstore.disk.durability import Durability
from tests.logstore.simulated_disk import PowerLost
from tests.simulation.ailments import Ailments
from tests.simulation.backups import Backups
from tests.simulation.world.machine import Machine
from tests.simulation.world.network import Network
from tests.simulation.world.process import ProcessEnded

#: A broker that has not started by then never will.
START_S = 120.0


#: Nor will one that has ended so often.
INCARNATIONS_MAX = 100


class NeverStarted(AssertionError):
    """The broker neither started nor ended, or it ended again and again."""


@dataclass
class Nemesis:
    """Disturbs one machine, and brings its broker back."""

    machine: Machine
    network: Network
    random: Random
    #: What befalls the disk, where anything does.
    ailments: Ailments | None = None
    #: What an operator puts back at starts, where the history has one who does.
    backups: Backups | None = None

    async def rage(self, seconds: float) -> None:
        """Disturb for that long; at the end a broker is up."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + seconds
        while loop.time() < end_s:
            await asyncio.sleep(self.random.choice((0.02, 0.2, 0.5, 1.0)))
            if not self.machine.is_alive:
                await self.revive()
            await self._strike()
            if self.backups is not None:
                self.backups.take(self.machine.disk)
            if self.ailments is not None:
                self.ailments.strike(self.machine.disk, loop.time())
        if self.ailments is not None:
            self.ailments.end(self.machine.disk)
        await self.revive()

    async def _strike(self) -> None:
        chance = self.random.random()
        if chance < 0.35:
            self.network.disturb()
        elif chance < 0.6:
            await self.crash()
        elif chance < 0.75 and self._loses_power():
            self.machine.disk.lose_power_after(self.random.randrange(200))
        elif chance < 0.83:
            self._stop_process()
        elif chance < 0.93:
            self.machine.wall.set_ahead(self.random.choice((0, 60_000, -60_000)))
        else:
            await self.restart()

    def _loses_power(self) -> bool:
        return self.machine.durability is Durability.FSYNC

    def _stop_process(self) -> None:
        if self.machine.process is not None:
            self.machine.process.stop_for(self.random.choice((0.2, 1.0, 4.0)))

    async def crash(self) -> None:
        """End the broker at once, with its machine or without, and start the next."""
        if self._loses_power() and self.random.random() < 0.75:
            self.machine.lose_power()
        else:
            self.machine.kill()
        await self._start()

    async def strike_down(self) -> None:
        """Let the power go in the middle of what is under way, or end the process."""
        if self._loses_power():
            self.machine.disk.lose_power_after(self.random.randrange(30))
            for _ in range(100):
                if not self.machine.is_alive:
                    return
                await asyncio.sleep(0.01)
            self.machine.lose_power()
        else:
            self.machine.kill()

    async def restart(self) -> None:
        """Stop the broker cleanly, and start the next."""
        if not self.machine.is_up:
            return
        stopping = self.machine.stop()
        while self.machine.is_alive:
            await asyncio.sleep(0.01)
        if stopping.done():
            # A stop that failed is among the failures of the machine.
            with suppress(PowerLost, ProcessEnded):
                stopping.result()
        await self.revive()

    async def revive(self) -> None:
        """Return when a broker is up, after as many starts as it takes."""
        while not self.machine.is_up:
            if self.machine.is_alive:
                await self._wait()
            else:
                self._take_disk()
                await self._start()
        self.machine.disk.keep_power()

    def _take_disk(self) -> None:
        """Give the next broker the disk as the last one, which has ended by itself, left it."""
        if self.machine.has_lost_power:
            self.machine.lose_power()
        else:
            self.machine.kill()

    async def _start(self) -> None:
        if self.machine.incarnations >= INCARNATIONS_MAX:
            raise NeverStarted(f"{INCARNATIONS_MAX} brokers: {self.machine.failures[-1:]}")
        if self.ailments is not None:
            self.ailments.before_start(self.machine.disk, self.machine.failures)
        if self.backups is not None:
            self.backups.put_back(self.machine.disk, self.machine.stored)
        self.machine.start()
        if self._loses_power() and self.random.random() < 0.2:
            self.machine.disk.lose_power_after(self.random.randrange(60))
        await self._wait()

    async def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        end_s = loop.time() + START_S
        while self.machine.is_alive and not self.machine.is_up:
            await asyncio.sleep(0.01)
            if loop.time() > end_s:
                raise NeverStarted(f"after {START_S} s of incarnation {self.machine.incarnations}")
