"""Checkpoints that survive their nodes: shared-storage checks, durable multi-rank saves and requeue for Slurm."""

__version__ = "0.1.0"
