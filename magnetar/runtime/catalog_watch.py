"""Applies to this node what other nodes change in the shared catalog.

The catalog numbers its changes, and says what each change was about: a topic, a user, a table. The
watch remembers the number of the last change that it has read. It reads the later ones, and brings
this node's memory up to date with the catalog. The changes of this node itself are read again too,
which is harmless: memory and catalog are equal then. A peer that has changed the catalog tells this
node (`catch_up`). The watch also looks once a second, so a lost message costs one second.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from uuid import UUID

from magnetar.runtime.background import Background
from magnetar.storage.acls import Acls
from magnetar.storage.broker_configs import RESOURCE_TYPE, BrokerConfigs
from magnetar.storage.catalog import Catalog
from magnetar.storage.catalog_rows import Change
from magnetar.storage.client_quotas import ClientQuotas
from magnetar.storage.delegation_tokens import DelegationTokens
from magnetar.storage.scram_credentials import ScramCredentials
from magnetar.storage.stored_configs import StoredConfigs
from magnetar.storage.topics import Topics

#: The longest time until a change is seen if the peer's message was lost.
LOOK_AGAIN_S = 1.0
#: Reading so many things of a kind one by one takes as long as reading all of them.
ONE_BY_ONE_MAX = 100
#: Users that one step reads by one statement: a few milliseconds.
_USERS_TOGETHER = 64
_READ_ONE_BY_ONE = ("acls", "configs", "quotas", "tokens")


class CatalogWatch:
    """Reads the catalog's changes and applies them."""

    def __init__(
        self,
        catalog: Catalog,
        version: int,
        topics: Topics,
        stored_configs: StoredConfigs,
        broker_configs: BrokerConfigs,
        client_quotas: ClientQuotas,
        acls: Acls | None,
        scram: ScramCredentials,
        tokens: DelegationTokens | None,
    ) -> None:
        """`version`: the last change that `topics` and the other parts have read already."""
        self.version = version
        self._catalog = catalog
        self._topics = topics
        self._stored_configs = stored_configs
        self._broker_configs = broker_configs
        self._client_quotas = client_quotas
        self._acls = acls
        self._scram = scram
        self._tokens = tokens
        #: Called when nodes have started or ended, before topics learn of that.
        self.on_nodes: Callable[[], None] = lambda: None
        self._applying = asyncio.Lock()
        self._background: Background | None = None

    def start(self, fail: Callable[[BaseException], None]) -> None:
        """Look for changes from now on. `fail` ends the node if a change cannot be applied."""
        self._background = Background(fail)
        self._background.start(self._look_periodically())

    def stop(self) -> None:
        """Look for no more changes."""
        if self._background is not None:
            self._background.cancel()

    async def catch_up(self) -> int:
        """Apply every change made so far; return the number of the last one."""
        async with self._applying:
            if self._catalog.change_count() != self.version:
                version, changes, epochs = self._catalog.changes_since(self.version)
                found = self._everything() if changes is None else merged(changes)
                # First: a node that starts may be the former leader of a topic that has moved.
                await self._topics.refresh(
                    UUID(hex=each.name) for each in found if each.kind == "topic"
                )
                for change in found:
                    await self._apply(change, epochs)
                self._apply_quotas([each.name for each in found if each.kind == "quotas"])
                await self._apply_users([each.name for each in found if each.kind == "scram"])
                self.version = version
            return self.version

    async def _look_periodically(self) -> None:
        while True:
            await self.catch_up()
            await asyncio.sleep(LOOK_AGAIN_S)

    def _everything(self) -> list[Change]:
        """Return one change for everything that is, or was, in the catalog."""
        ids = {row.id for row in self._catalog.topics()}
        ids.update(topic.id for topic in self._topics.all())
        users = {row[0] for row in self._catalog.scram_credentials()}.union(self._scram.users())
        return [
            Change("node", ""),
            *(Change("topic", topic_id.hex) for topic_id in ids),
            Change("configs", ""),
            Change("quotas", ""),
            Change("acls", ""),
            Change("tokens", ""),
            *(Change("scram", user) for user in users),
        ]

    async def _apply(self, change: Change, epochs: Mapping[int, int]) -> None:
        """Apply a change, but of topics, quotas and users. `epochs`: as `Topics.see_nodes`."""
        match change.kind:
            case "node":
                self.on_nodes()
                self._topics.see_nodes(epochs)
            case "configs":
                await self._apply_configs(change.name)
            case "acls":
                if self._acls is not None and change.name:
                    self._acls.look(tuple(json.loads(change.name)))
                elif self._acls is not None:
                    # Read in this step, not in a thread: otherwise this node might change its rules
                    # during the read, and lose the change to the older result.
                    self._acls.take_over(self._catalog.acls())
            case "tokens":
                if self._tokens is not None:
                    self._tokens.reload(change.name)

    async def _apply_configs(self, name: str) -> None:
        """Apply configs of a resource, as `Catalog.set_resource_configs` names it, or all."""
        resource_type, _, resource_name = name.partition(":")
        self._stored_configs.reload((int(resource_type), resource_name) if name else None)
        # What topics inherit is the broker's: to look at all of them takes long.
        if not name or int(resource_type) == RESOURCE_TYPE:
            self._broker_configs.reload()
            self._broker_configs.on_change()
            await self._topics.inherit()

    def _apply_quotas(self, entities: Sequence[str]) -> None:
        """Apply what has changed of quotas; "" is all of them. Together: after each reload all
        quotas and connections are looked at."""
        if entities:
            self._client_quotas.reload(*(() if "" in entities else entities))

    async def _apply_users(self, users: Sequence[str]) -> None:
        """Apply what has changed of users of SCRAM: of ten thousand after one request, perhaps."""
        for first in range(0, len(users), _USERS_TOGETHER):
            self._scram.reload(*users[first : first + _USERS_TOGETHER])
            await asyncio.sleep(0)


def merged(changes: list[Change]) -> list[Change]:
    """Return the changes, those of many things of a kind as one of all of them."""
    counts = Counter(change.kind for change in changes)
    many = [kind for kind in _READ_ONE_BY_ONE if counts[kind] > ONE_BY_ONE_MAX]
    others = [change for change in changes if change.kind not in many]
    return [*others, *(Change(kind, "") for kind in many)]
