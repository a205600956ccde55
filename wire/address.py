"""`host:port`, as listeners, bootstrap servers and metadata spell an address."""

from __future__ import annotations

PORT_MAX = 0xFFFF


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of `host:port` or `[ipv6]:port`; the host may be empty.

    Raises ValueError with a message for the person who wrote `text`.
    """
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{text} needs brackets around its IPv6 address")
    if not colon or not port.isdigit() or int(port) > PORT_MAX:
        raise ValueError(f"{text} is not host:port with a port of 0 to {PORT_MAX}")
    try:
        # As the resolver does it: a part of a name is neither empty nor longer than 63 characters.
        host.encode("idna")
    except UnicodeError:
        raise ValueError(f"{text} is not host:port: there is no host {host}") from None
    return host, int(port)
