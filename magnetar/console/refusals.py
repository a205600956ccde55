"""What a cluster's refusals mean, in plain words. Pure."""

from __future__ import annotations

from magnetar.client import ClientError, Refused
from wire.error_code import ErrorCode

#: The rights that are missing, by the code that says so.
_RIGHTS = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "with this topic",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "with this group",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "with the cluster",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "with this transactional id",
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED: "with this token",
}
_WORDS = {
    ErrorCode.SECURITY_DISABLED: "The cluster has no authorizer, so it keeps no rules.",
    ErrorCode.TOPIC_ALREADY_EXISTS: "There is a topic of that name.",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "There is no such topic or partition (any more).",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "A topic cannot have that name.",
    ErrorCode.INVALID_PARTITIONS: "A topic cannot have that many partitions; it never shrinks.",
    ErrorCode.INVALID_REPLICATION_FACTOR: "There are not as many nodes as copies are wanted.",
    ErrorCode.INVALID_CONFIG: "The cluster does not take that setting or that value.",
    ErrorCode.INVALID_REQUEST: "The cluster does not take that.",
    ErrorCode.POLICY_VIOLATION: "A policy of the cluster forbids that.",
    ErrorCode.TOPIC_DELETION_DISABLED: "The cluster does not delete topics (delete.topic.enable).",
    ErrorCode.NON_EMPTY_GROUP: "The group has members: stop them first.",
    ErrorCode.GROUP_ID_NOT_FOUND: "There is no such group (any more).",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "A member of the group reads that topic: stop it first.",
    ErrorCode.UNKNOWN_MEMBER_ID: "There is no such member (any more).",
    ErrorCode.OFFSET_OUT_OF_RANGE: "The partition has no such offset (any more).",
    ErrorCode.UNACCEPTABLE_CREDENTIAL: "The cluster does not take that user or password.",
    ErrorCode.RESOURCE_NOT_FOUND: "There is no such user (any more).",
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: "Too many changes at once: a quota says to try later.",
    ErrorCode.NOT_CONTROLLER: "The cluster is choosing its controller: try again.",
    ErrorCode.INVALID_TXN_STATE: "The transaction is in a state that does not allow that.",
    ErrorCode.MESSAGE_TOO_LARGE: "The record is larger than the topic allows (max.message.bytes).",
    ErrorCode.INVALID_RECORD: "The topic does not take that record: a compacted topic wants a key.",
}


def explained(failure: ClientError, username: str | None) -> str:
    """Return the failure with what it means; the cluster's own words stay, for a search."""
    if not isinstance(failure, Refused):
        return str(failure)
    who = "you" if username is None else f"the user {username}"
    words = _WORDS.get(failure.code, "")
    if failure.code in _RIGHTS:
        words = f"The cluster's rules (ACLs) do not allow {who} to do that {_RIGHTS[failure.code]}."
    return (
        f"{words} The cluster answered: {failure}" if words else f"The cluster refused: {failure}"
    )
