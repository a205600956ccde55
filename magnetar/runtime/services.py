"""What request handlers may call: the parts of a running broker, by name.

The broker builds one `Services` when recovery is over. A handler takes it whole; everything below
the handlers takes the few parts it needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from magnetar.clock import Clock
from magnetar.config.broker import BrokerConfig
from magnetar.runtime.authentication import Authentication
from magnetar.runtime.background import WholeWork
from magnetar.runtime.batch_checks import BatchChecks
from magnetar.runtime.config_resources import ConfigResources
from magnetar.runtime.fetch_sessions import FetchSessions
from magnetar.runtime.groups import Groups
from magnetar.runtime.holds_elsewhere import HoldsElsewhere
from magnetar.runtime.nodes import Nodes
from magnetar.runtime.participants import LocalParticipants
from magnetar.runtime.quotas import Quotas
from magnetar.runtime.refusal_counts import RefusalCounts
from magnetar.runtime.response_memory import ResponseMemory
from magnetar.runtime.shared_timers import SharedTimers
from magnetar.runtime.telemetry import ClientTelemetry
from magnetar.runtime.transactions import Transactions
from magnetar.runtime.turns import Turns
from magnetar.storage.acls import Acls
from magnetar.storage.catalog import Catalog
from magnetar.storage.client_quotas import ClientQuotas
from magnetar.storage.delegation_tokens import DelegationTokens
from magnetar.storage.logs import Logs
from magnetar.storage.topics import Topics


@dataclass(frozen=True, slots=True)
class Node:
    """The broker as its clients see it."""

    id: int
    cluster_id: str
    #: The number of this start, from 0. Without other nodes it is every partition's leader epoch.
    epoch: int
    #: The one log directory.
    data_dir: Path


@dataclass(frozen=True, slots=True)
class Services:
    """The parts of a running broker that handlers use."""

    node: Node
    #: All nodes; this one alone without `serve --workers` and `serve --storage`.
    nodes: Nodes
    config: BrokerConfig
    clock: Clock
    #: Topics and their partitions; the logs beneath them, for what concerns many at once.
    topics: Topics
    logs: Logs
    #: What administrators change: the catalog, and settings and quotas in memory.
    catalog: Catalog
    config_resources: ConfigResources
    client_quotas: ClientQuotas
    #: What clients have taken of their quotas.
    quotas: Quotas
    authentication: Authentication
    refusals: RefusalCounts
    #: What clients tell of their own metrics; None where nothing takes them.
    telemetry: ClientTelemetry | None
    #: The rights of clients; None without an authorizer.
    acls: Acls | None
    #: Delegation tokens; None without a secret for them.
    tokens: DelegationTokens | None
    #: The coordinators, and the partitions of this broker as participants of transactions.
    groups: Groups
    transactions: Transactions
    participants: LocalParticipants
    #: What transactions that other nodes coordinate hold here; None for a node that is alone.
    holds_elsewhere: HoldsElsewhere | None
    #: What fetches keep between requests, and share among connections.
    fetch_sessions: FetchSessions
    fetch_timers: SharedTimers
    #: What must not end half way because a client has gone.
    whole_work: WholeWork
    #: Produced batches whose check takes long.
    batch_checks: BatchChecks
    response_memory: ResponseMemory
    #: How a handler lets others have their turn while it lists much.
    turns: Turns
