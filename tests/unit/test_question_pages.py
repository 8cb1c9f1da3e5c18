"""A campaign that measured the conditions of a question, and no others, has its page."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

import pyarrow
import pytest
from notebook_pages import execute, summary_of
from pyarrow import compute, parquet

from labkit import load, questions, studies
from labkit.campaign.budget import rows_of
from labkit.dataset import Dataset
from labkit.design import condition_label
from labkit.paths import project


def reduce(campaign: Dataset, target: Path, labels: Collection[str]) -> Dataset:
    """Copy a packed campaign with some of its conditions only; return the copy."""
    source = campaign.path
    plan = json.loads((source / "plan.json").read_text())
    kept = [
        number
        for number, condition in enumerate(plan["conditions"])
        if condition_label(condition["levels"]) in labels
    ]
    plan["order"] = [[kept.index(one) for one in block if one in kept] for block in plan["order"]]
    plan["conditions"] = [plan["conditions"][number] for number in kept]
    target.mkdir(parents=True)
    (target / "plan.json").write_text(json.dumps(plan))
    (target / "sessions.json").write_text((source / "sessions.json").read_text())
    names = {one["trial"] for one in campaign.records if condition_label(one["levels"]) in labels}
    for name in ("trials.parquet", "samples.parquet"):
        if not (source / name).exists():
            continue
        with parquet.ParquetFile(source / name) as file:
            tables = [file.read_row_group(number) for number in range(file.num_row_groups)]
            wanted = pyarrow.array(sorted(names), file.schema_arrow.field("trial").type)
            with parquet.ParquetWriter(target / name, file.schema_arrow) as writer:
                for table in tables:
                    if len(part := table.filter(compute.is_in(table["trial"], wanted))):
                        writer.write_table(part)
    return load(target)


@pytest.mark.parametrize("name", questions.load_questions())
def test_a_question_is_answered_on_its_page(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    question = questions.load_questions()[name][""]
    reference = load(project("data/reference") / question.study)
    labels = question.conditions(reference).keys()
    campaign = reduce(reference, tmp_path / "campaign", labels)
    assert len(rows_of(campaign)) < len(rows_of(reference))
    (study,) = studies.find([question.study])
    notebook = project("notebooks/analysis") / study.name
    shown, _ = execute(monkeypatch, campaign, notebook, data=str(campaign.path))
    assert summary_of(shown)["answer"]["sentences"]
