"""A client that tries to get in: with no login, with half of one, and as a user without rights."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from random import Random
from typing import NamedTuple
from uuid import UUID

from magnetar.client.login import NotTheBroker, scram
from tests.simulation.access import APP, GUARDED, NO_ONE, beyond_rights
from tests.simulation.clients.connection import Connection
from tests.simulation.clients.forbidden import Forbidden, Target, any_forbidden
from tests.simulation.observations import Observations
from tests.simulation.simulated_broker import Gone
from wire.error_code import ErrorCode
from wire.message import Message
from wire.messages import api_versions, sasl_authenticate, sasl_handshake

_SCRAM = "SCRAM-SHA-256"


class _Refused(Exception):
    """The broker has refused the login."""


class Prey(NamedTuple):
    """What there is to steal or to spoil."""

    topics: Mapping[str, UUID]
    groups: tuple[str, ...] = ("group", "g0", "g1")
    transactional_ids: tuple[str, ...] = ("tx0", "tx1")


class Intruder:
    """Each try is a connection of its own."""

    def __init__(
        self, connect: Callable[[], Connection], prey: Prey, seen: Observations, random: Random
    ) -> None:
        self.is_ending = False
        #: Requests that were answered with no more than a refusal.
        self.refused = 0
        self._connect = connect
        self._prey = prey
        self._seen = seen
        self._random = random

    async def run(self) -> None:
        """Try until told to end."""
        tries = (self._stranger, self._half_login, self._wrong_password, self._without_rights)
        while not self.is_ending:
            connection = self._connect()
            with suppress(Gone):
                await self._random.choice(tries)(connection)
            connection.drop()
            await asyncio.sleep(self._random.choice((0.01, 0.1, 0.3)))

    async def _stranger(self, connection: Connection) -> None:
        """Send requests before anything, or after ApiVersions."""
        if self._random.random() < 0.5:
            request = api_versions.ApiVersionsRequest()
            await connection.ask(request, api_versions.ApiVersionsResponse, 3)
        await self._ask_before_login(connection, "without a login")

    async def _half_login(self, connection: Connection) -> None:
        """Stop somewhere in a login that would succeed."""
        if self._random.random() < 0.5:
            await self._choose(connection, "PLAIN")
        else:
            await self._log_in(connection, NO_ONE.password, tokens_max=self._random.randrange(2))
        await self._ask_before_login(connection, "in half a login")

    async def _wrong_password(self, connection: Connection) -> None:
        user = self._random.choice((APP.user, NO_ONE.user, "no such user"))
        try:
            if self._random.random() < 0.5:
                await self._choose(connection, "PLAIN")
                await self._send(connection, f"\0{user}\0wrong".encode())
            else:
                await self._log_in(connection, "wrong")
            self._witness(f"{user} has logged in by a wrong password")
        except _Refused:
            await self._ask_before_login(connection, "after a failed login")

    async def _without_rights(self, connection: Connection) -> None:
        try:
            await self._log_in(connection, NO_ONE.password)
        except _Refused:
            self._witness("the right password was refused")
            return
        while connection.is_open and not self.is_ending and self._random.random() < 0.9:
            for asked, answer in await self._ask_some(connection):
                if wrong := beyond_rights(asked, answer):
                    self._witness(f"{type(asked.request).__name__} v{asked.version}: {wrong}")
                self.refused += 1

    async def _ask_before_login(self, connection: Connection, when: str) -> None:
        """Ask, and expect no answer."""
        for _, answer in await self._ask_some(connection):
            self._witness(f"answered {when}: {type(answer).__name__}")

    async def _ask_some(self, connection: Connection) -> list[tuple[Forbidden, Message]]:
        """Send some requests at once; return those that were answered, and their answers."""
        some = [self._any() for _ in range(self._random.randint(1, 8))]
        asking = [connection.ask(one.request, one.response_class, one.version) for one in some]
        answered = []
        for asked, answer in zip(
            some, await asyncio.gather(*asking, return_exceptions=True), strict=True
        ):
            if isinstance(answer, Message):
                answered.append((asked, answer))
            elif not isinstance(answer, Gone):
                raise answer
        return answered

    async def _choose(self, connection: Connection, mechanism: str) -> None:
        request = sasl_handshake.SaslHandshakeRequest(mechanism=mechanism)
        answer = await connection.ask(request, sasl_handshake.SaslHandshakeResponse, 1)
        assert answer.error_code == 0, answer

    async def _log_in(self, connection: Connection, password: str, tokens_max: int = 2) -> None:
        """Log in by SCRAM, or begin to. Raises _Refused."""
        await self._choose(connection, _SCRAM)
        nonce = f"{self._random.getrandbits(64):x}"
        login = scram(_SCRAM, NO_ONE.user, password, nonce)
        token = next(login)
        for _ in range(tokens_max):
            answer = await self._send(connection, token)
            try:
                token = login.send(answer)
            except StopIteration:
                return
            except NotTheBroker as error:
                self._witness(f"the broker does not know the password: {error}")
                return

    async def _send(self, connection: Connection, token: bytes) -> bytes:
        request = sasl_authenticate.SaslAuthenticateRequest(auth_bytes=token)
        answer = await connection.ask(request, sasl_authenticate.SaslAuthenticateResponse, 2)
        if answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED:
            raise _Refused
        assert answer.error_code == 0, answer
        return answer.auth_bytes

    def _any(self) -> Forbidden:
        random, prey = self._random, self._prey
        topic = random.choice((GUARDED, *prey.topics))
        return any_forbidden(
            Target(
                random,
                topic,
                prey.topics[topic],
                random.choice(prey.groups),
                random.choice(prey.transactional_ids),
            )
        )

    def _witness(self, sentence: str) -> None:
        self._seen.witnesses.append(f"access: an intruder: {sentence}")
