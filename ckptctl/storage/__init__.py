"""The file system: mounts, durable file operations, the repository of checkpoints, its journal and its quarantine."""
