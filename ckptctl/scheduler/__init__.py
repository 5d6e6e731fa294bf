"""Workload managers: the only room that reads a scheduler's variables or runs its commands.

`slurm` talks to Slurm; `local` is the embedded scheduler of the demo and the tests, `local_controller` its controller.
"""
