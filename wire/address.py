"""`host:port`, as listeners, bootstrap servers and metadata spell an address."""

from __future__ import annotations

PORT_MAX = 0xFFFF
#: The characters of one part of a host's name, at most.
_PART_MAX = 63


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of `host:port` or `[ipv6]:port`; the host may be empty.

    Raises ValueError with a message for the person who wrote `text`.
    """
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif "://" in host:
        raise ValueError(f"{text} is not host:port: leave out {host.partition('://')[0]}://")
    elif ":" in host:
        raise ValueError(f"{text} needs brackets around its IPv6 address")
    if not colon or not port.isdigit() or int(port) > PORT_MAX:
        raise ValueError(f"{text} is not host:port with a port of 0 to {PORT_MAX}")
    if host and not _is_host(host):
        raise ValueError(f"{text} is not host:port: there is no host {host}")
    return host, int(port)


def address_text(host: str, port: int) -> str:
    """Return `host:port`, or `[ipv6]:port`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _is_host(host: str) -> bool:
    """Return whether the resolver may be asked for a host: of a name, no part is empty or long."""
    if host.isascii():
        # Not by the codec, which takes 20 ms to load.
        return all(0 < len(part) <= _PART_MAX for part in host.removesuffix(".").split("."))
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True
