"""Names of checkpoint, staging and generation folders."""

from __future__ import annotations

import pytest

from ckptctl.model.checkpoint import CheckpointId, generation_name, parse_generation, parse_staged, staged_name


@pytest.mark.parametrize(
    ("step", "generation", "name"),
    [(0, 1, "step-00000000.g0001"), (1200, 3, "step-00001200.g0003"), (123456789, 12345, "step-123456789.g12345")],
)
def test_a_folder_name_tells_step_and_generation(step: int, generation: int, name: str) -> None:
    assert CheckpointId(step, generation).folder == name
    assert CheckpointId.parse(name) == CheckpointId(step, generation)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "latest",
        "step-1.g1",
        "step-00000001",
        "step-00000001.g001",
        "step-00000001.g0001.tmp",
        "step-000000001.g0001",
        "step-00000001.g00001",
        "Step-00000001.g0001",
        "step--0000001.g0001",
        "step-0000000\u0661.g0001",
    ],
)
def test_any_other_name_is_no_checkpoint(name: str) -> None:
    assert CheckpointId.parse(name) is None


def test_staged_and_generation_names_come_back() -> None:
    assert parse_staged(staged_name(42)) == 42
    assert parse_generation(generation_name(7)) == 7
    assert parse_staged("step-42") is None
    assert parse_generation("g7") is None
    assert parse_generation("gx") is None


def test_checkpoints_order_by_step_then_generation() -> None:
    assert sorted([CheckpointId(2, 1), CheckpointId(1, 9), CheckpointId(2, 0)]) == [
        CheckpointId(1, 9),
        CheckpointId(2, 0),
        CheckpointId(2, 1),
    ]
