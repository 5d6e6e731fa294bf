"""Findings of checks, and the report that holds all of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Severity(str, Enum):
    """How much a finding matters."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class Finding:
    """One observation of a check: what was seen, where, and what to do about it."""

    name: str
    severity: Severity
    message: str
    where: str = ""
    remedy: str = ""
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """All findings of one check of one subject."""

    subject: str
    findings: tuple[Finding, ...]

    @property
    def worst(self) -> Severity:
        """The severity of the worst finding, INFO when there is none."""
        order = list(Severity)
        return max((finding.severity for finding in self.findings), key=order.index, default=Severity.INFO)
