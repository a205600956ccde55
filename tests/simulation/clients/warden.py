"""An administrator of access: makes users and rules, grants a right and takes it away again."""

from __future__ import annotations

import asyncio
import hashlib
from random import Random
from typing import TypeVar
from uuid import UUID

from magnetar.security.acls import Operation, Pattern, Permission, Resource
from tests.simulation.access import (
    GUARDED,
    GUARDED_PARTITIONS,
    GUEST,
    NO_ONE,
    Change,
    Right,
    Rights,
    allowing,
    rights_of_clients,
)
from tests.simulation.clients.connection import Connection
from tests.simulation.simulated_broker import Gone
from wire.message import Message
from wire.messages import (
    alter_user_scram_credentials,
    create_acls,
    delete_acls,
    metadata,
    produce,
)
from wire.records import SimpleRecord, build_batch

M = TypeVar("M", bound=Message)
_ITERATIONS, _SALT = 4096, b"salt of a history"


class Warden:
    """Is a super user. Each of its requests is sent until it is answered."""

    def __init__(self, connection: Connection, rights: Rights, random: Random) -> None:
        """`rights` are the guest's, of which it keeps the record."""
        self.is_ending = False
        self._connection = connection
        self.rights = rights
        self._random = random

    async def run(self) -> None:
        """Grant and take away until told to end."""
        while not self.is_ending:
            await asyncio.sleep(self._random.choice((0.05, 0.1, 0.3, 0.8)))
            operation, right = self._random.choice(
                ((Operation.READ, self.rights.read), (Operation.WRITE, self.rights.write))
            )
            if right.changes and right.changes[-1].is_granted:
                await self._change(right, self._taking(operation))
            else:
                await self._change(right, self._grant(operation))

    async def prepare(self) -> None:
        """Give the ordinary clients what they need, and one user a password of the catalog."""
        creations = rights_of_clients()
        request = create_acls.CreateAclsRequest(creations=creations)
        answer = await self._told(request, create_acls.CreateAclsResponse, 3)
        assert [one.error_code for one in answer.results] == [0] * len(creations)
        salted = hashlib.pbkdf2_hmac("sha256", NO_ONE.password.encode(), _SALT, _ITERATIONS)
        upsertion = alter_user_scram_credentials.ScramCredentialUpsertion(
            name=NO_ONE.user,
            mechanism=1,
            iterations=_ITERATIONS,
            salt=_SALT,
            salted_password=salted,
        )
        altered = await self._told(
            alter_user_scram_credentials.AlterUserScramCredentialsRequest(upsertions=[upsertion]),
            alter_user_scram_credentials.AlterUserScramCredentialsResponse,
            0,
        )
        assert [one.error_code for one in altered.results] == [0]

    async def topics(self) -> dict[str, UUID]:
        """Return all topics, with their ids."""
        request = metadata.MetadataRequest(topics=None)
        answer = await self._told(request, metadata.MetadataResponse, 12)
        return {topic.name or "": topic.topic_id for topic in answer.topics}

    async def fill(self) -> None:
        """Write a record where few others do."""
        number = 0
        while True:
            number += 1
            record = SimpleRecord(b"k", f"warden/{number}".encode(), 1_700_000_000_000)
            batch = build_batch([record])
            data = produce.PartitionProduceData(index=GUARDED_PARTITIONS - 1, records=batch)
            topic = produce.TopicProduceData(name=GUARDED, partition_data=[data])
            request = produce.ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic])
            try:
                answer = await self._connection.ask(request, produce.ProduceResponse, 9)
            except Gone:
                await asyncio.sleep(0.1)
                continue
            assert answer.responses[0].partition_responses[0].error_code == 0, answer
            return

    def _grant(self, operation: Operation) -> create_acls.CreateAclsRequest:
        name, pattern = self._random.choice(
            ((GUARDED, Pattern.LITERAL), (GUARDED[:4], Pattern.PREFIXED))
        )
        right = allowing(GUEST.user, operation, Resource.TOPIC, name, pattern)
        return create_acls.CreateAclsRequest(creations=[right])

    def _taking(self, operation: Operation) -> delete_acls.DeleteAclsRequest:
        """Return a request that removes every rule of the guest about this operation."""
        everything = delete_acls.DeleteAclsFilter(
            resource_type_filter=Resource.ANY,
            resource_name_filter=None,
            pattern_type_filter=Pattern.ANY,
            principal_filter=f"User:{GUEST.user}",
            host_filter=None,
            operation=operation,
            permission_type=Permission.ANY,
        )
        return delete_acls.DeleteAclsRequest(filters=[everything])

    async def _change(
        self, right: Right, request: create_acls.CreateAclsRequest | delete_acls.DeleteAclsRequest
    ) -> None:
        loop = asyncio.get_running_loop()
        is_granted = isinstance(request, create_acls.CreateAclsRequest)
        change = Change(is_granted, asked_s=loop.time())
        right.changes.append(change)
        if is_granted:
            made = await self._told(request, create_acls.CreateAclsResponse, 3)
            codes = [one.error_code for one in made.results]
        else:
            removed = await self._told(request, delete_acls.DeleteAclsResponse, 3)
            codes = [one.error_code for one in removed.filter_results]
        assert codes == [0], codes
        change.told_s = loop.time()

    async def _told(self, request: Message, response_class: type[M], version: int) -> M:
        while True:
            try:
                return await self._connection.ask(request, response_class, version)
            except Gone:
                await asyncio.sleep(self._random.choice((0.01, 0.1)))
