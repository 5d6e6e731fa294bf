"""Conformance suites for whoever implements one of ckptctl's protocols; public, and free of any test framework."""
