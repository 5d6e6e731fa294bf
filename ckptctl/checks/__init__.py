"""Probes that return findings. Read-only unless asked to probe; they never repair, and never raise for a finding."""
