"""Nouns: frozen dataclasses and enums, with their encoding. No I/O, no clock, no environment."""
