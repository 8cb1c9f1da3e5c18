"""The JSON objects of a dataset, validated when they are read: files may be untrusted."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator

from labkit.errors import DatasetError

RESTORE = "restore it from a backup, or remove its directory: the same run measures it again"
_Object = dict[str, Any]
_Level = str | int | FiniteFloat | bool
_Value = str | int | float | bool | None
_Integer = Annotated[int, Field(ge=-(2**63), lt=2**63)]
_Count = Annotated[int, Field(ge=0, lt=2**63)]


class _Open(BaseModel):
    """An object of which these keys are known; unknown ones are kept."""

    model_config = ConfigDict(strict=True, extra="allow")


class _Condition(_Open):
    levels: dict[str, _Level]


class Plan(_Open):
    """``plan.json``."""

    identity: _Object
    factors: dict[str, list[_Level]]
    rig: _Object
    study: str = ""
    labkit: str = ""
    settings: _Object = {}
    baseline: dict[str, _Level] = {}
    margin: float = 0.0
    outcomes: list[str] = []
    blocks: _Count = 0
    seed: int = 0
    conditions: list[_Condition] = []
    order: list[list[_Count]] = []
    infeasible: list[dict[str, str]] = []

    @model_validator(mode="after")
    def _conditions_exist(self) -> Plan:
        last = max((index for block in self.order for index in block), default=-1)
        if last >= len(self.conditions):
            raise ValueError(f"there is no condition {last}")
        return self


class _Look(_Open):
    blocks: _Count
    dropped: list[str]


class Looks(_Open):
    """``looks.json``."""

    looks: list[_Look]


class Session(_Open):
    """``sessions/01.json``."""

    facts: dict[str, _Object]


class Sessions(_Open):
    """``sessions.json`` of a packed campaign."""

    sessions: list[_Object]


class _Also(_Open):
    levels: dict[str, _Level]
    metrics: dict[str, _Value]


class Record(_Open):
    """``trial.json``, or a row of ``trials.parquet``."""

    trial: str
    attempt: _Integer
    block: _Integer
    position: _Integer
    replicate: _Integer
    levels: dict[str, _Level]
    session: _Integer
    status: str
    n_samples: _Count
    started_ns: _Integer
    seconds: float
    error: _Object | None = None
    metrics: dict[str, _Value] = {}
    mechanisms: dict[str, _Value] = {}
    flags: list[str] = []
    also: list[_Also] = []
    sha256s: dict[str, str] = {}


def check(data: dict[str, Any], schema: type[BaseModel], where: str) -> dict[str, Any]:
    """Return a JSON object if it has the keys and types of a schema, else raise `DatasetError`."""
    try:
        schema.model_validate(data)
    except ValidationError as error:
        mistakes = error.errors(include_url=False, include_input=False)
        missing = [str(one["loc"][0]) for one in mistakes if one["type"] == "missing"]
        first = mistakes[0]
        place = ".".join(map(str, first["loc"]))
        raise DatasetError(
            "a file of the dataset is damaged",
            where=where,
            why=f"it has no {', '.join(missing)}" if missing else f"{place}: {first['msg']}",
            remedy=RESTORE,
        ) from None
    return data
