"""Verdicts: the class of a path (placement) and the state of a checkpoint (completeness)."""

from __future__ import annotations

from enum import Enum


class Placement(str, Enum):
    """The class of a path: who can still read it when its node is gone."""

    SHARED_PARALLEL = "SHARED_PARALLEL"
    SHARED_SERVER = "SHARED_SERVER"
    SHARED_WRITEBACK = "SHARED_WRITEBACK"
    SHARED_OBJECT = "SHARED_OBJECT"
    SHARED_EPHEMERAL = "SHARED_EPHEMERAL"
    NODE_ATTACHED_NETWORK_BLOCK = "NODE_ATTACHED_NETWORK_BLOCK"
    NODE_LOCAL = "NODE_LOCAL"
    CONTAINER_EPHEMERAL = "CONTAINER_EPHEMERAL"
    VOLATILE = "VOLATILE"
    READ_ONLY = "READ_ONLY"
    AUTOFS_PENDING = "AUTOFS_PENDING"
    MISSING_MOUNT = "MISSING_MOUNT"
    UNREACHABLE = "UNREACHABLE"
    UNKNOWN = "UNKNOWN"


class Confidence(str, Enum):
    """How a placement verdict is known."""

    DECLARED = "declared"
    STATIC = "static"
    PROVED = "proved"


class Completeness(str, Enum):
    """The state of one checkpoint folder."""

    COMPLETE = "COMPLETE"
    INCOMPLETE = "INCOMPLETE"
    CORRUPT = "CORRUPT"
    SUSPECT = "SUSPECT"
    DEGRADED = "DEGRADED"
    UNKNOWN = "UNKNOWN"


class Grade(str, Enum):
    """How deep a completeness verdict looked: L1 names and sizes, L2 structure, L3 bytes."""

    L1 = "L1"
    L2 = "L2"
    L3 = "L3"
