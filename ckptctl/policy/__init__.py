"""Decisions: facts in, a decision with its reason out. No I/O; the clock only as an argument."""
