"""Saving: the POSIX engine, receipts, the committer, and the session a training process saves through."""
