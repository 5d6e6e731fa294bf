"""Whether a server's address is one of this machine, by the kernel's tables of local addresses."""

from __future__ import annotations

import os
import re


def is_own(address: str) -> bool:
    """Return whether an IPv4 or IPv6 address is one of this network namespace; False for what is no address."""
    if address.startswith("127."):
        return True
    if ":" not in address:
        # Not by trying to bind it: where net.ipv4.ip_nonlocal_bind is set, that works with any address.
        rows = rf"\|-- {re.escape(address)}\n\s+/32 host LOCAL"
        return re.search(rows, _read("/proc/net/fib_trie")) is not None
    import socket  # here: only few paths need it

    try:
        wanted = socket.inet_pton(socket.AF_INET6, address.strip("[]").partition("%")[0]).hex()
    except (OSError, ValueError):
        return False
    return any(line.startswith(wanted) for line in _read("/proc/net/if_inet6").splitlines())


def _read(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return os.fsdecode(file.read())
    except OSError:
        return ""
