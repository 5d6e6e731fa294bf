"""ckptctl for PyTorch: `Checkpointer` for a training loop, and a DCP storage writer and reader."""

from ckptctl_torch.checkpointer import Checkpointer
from ckptctl_torch.dcp import CheckpointReader, CheckpointWriter

__all__ = ["CheckpointReader", "CheckpointWriter", "Checkpointer"]
