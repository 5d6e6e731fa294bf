"""The journal: one file per event, read by one listing, foreign and broken files no obstacle."""

from __future__ import annotations

import os
from pathlib import Path

from ckptctl.storage import journal


def test_events_come_back_in_the_order_of_their_times_with_their_facts(tmp_path: Path) -> None:
    book = journal.Journal(str(tmp_path))
    book.write(journal.GENERATION, 1, job="17")
    book.write(journal.COMMIT, 1, 40, folder="step-00000040.g0001")
    book.write(journal.RESUME, 2, 40)
    assert {event.name for event in book.events()} == {journal.GENERATION, journal.COMMIT, journal.RESUME}
    (commit,) = book.events(journal.COMMIT)
    assert (commit.generation, commit.step) == (1, 40)
    assert book.facts(commit)["folder"] == "step-00000040.g0001"
    assert [event.time_ms for event in book.events()] == sorted(event.time_ms for event in book.events())


def test_foreign_names_and_half_written_files_are_ignored(tmp_path: Path) -> None:
    book = journal.Journal(str(tmp_path))
    for name in ("README", ".x.tmp", "1-g1-s1-commit-aa.json", "0000000000001-g0001-s00000001-COMMIT-aa.json"):
        (tmp_path / name).write_text("{}")
    assert book.events() == []


def test_a_file_that_cannot_be_read_still_tells_what_its_name_tells(tmp_path: Path) -> None:
    book = journal.Journal(str(tmp_path))
    book.write(journal.COMMIT, 3, 80, folder="x")
    (event,) = book.events()
    for broken in (b"", b"[]", b"\xff{"):
        Path(event.path).write_bytes(broken)
        assert book.facts(event) == {"event": "commit", "generation": 3, "step": 80, "time_ms": event.time_ms}
    os.unlink(event.path)
    assert book.facts(event)["step"] == 80


def test_a_journal_that_does_not_exist_is_empty(tmp_path: Path) -> None:
    assert journal.Journal(str(tmp_path / "none")).events() == []
