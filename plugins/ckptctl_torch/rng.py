"""Random number generators of one rank: Python's, NumPy's, torch's on the CPU and on every CUDA device in use.

Saved as one object per rank under a key of its own, so that DCP does not take the ranks' states for copies of one value. On a
larger world than the saved one the added ranks keep their own state; the caller says so.
"""

from __future__ import annotations

import pickle
import random
import sys
from typing import Any

import torch


def rng_key(rank: int) -> str:
    """Return the key of a rank's generators in the checkpoint."""
    return f"ckptctl.rng/{rank}"


def capture() -> bytes:
    """Return the state of all generators of this process."""
    found: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state().numpy().tobytes()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        found["numpy"] = numpy.random.get_state()
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        found["cuda"] = [state.cpu().numpy().tobytes() for state in torch.cuda.get_rng_state_all()]
    return pickle.dumps(found)


def placeholder() -> bytes:
    """Return what to load a captured state into."""
    return b""


def restore(captured: bytes) -> None:
    """Set the generators of this process to a captured state."""
    found = pickle.loads(captured)  # noqa: S301 - written by capture, inside a checkpoint that was verified
    random.setstate(found["python"])
    torch.set_rng_state(_tensor(found["torch"]))
    if "numpy" in found and "numpy" in sys.modules:
        sys.modules["numpy"].random.set_state(found["numpy"])
    if "cuda" in found and torch.cuda.is_available():
        torch.cuda.set_rng_state_all([_tensor(state) for state in found["cuda"]])


def _tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
