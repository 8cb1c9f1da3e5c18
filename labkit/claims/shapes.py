"""The shape of a claim of each kind, as JSON Schemas.

What a kind estimates and which fields it has (those in brackets may be missing):

================ ======================================== =====================================
kind             fields                                   what is said
================ ======================================== =====================================
difference       condition, baseline, direction,          the ratio of the two lies above or
                 [at_least]                               below 1 (or beyond ``at_least``)
equivalence      condition, baseline, [margin]            the ratio lies within the margin of 1
ratio            condition, baseline, [low], [high]       the ratio lies in the range
order            cells, direction                         every neighbouring pair is in that order
contrast         condition, baseline, condition2,         the ratio of the two ratios lies above
                 baseline2, direction                     or below 1
fixed-offset     condition, baseline, over, [margin],     the difference has an intercept above 0
                 [levels]                                 and no slope
linear           over, direction, [margin], [levels]      it grows (falls) along a straight line
monotone         over, direction, [levels]                it grows (falls) all the way
constant-product over, levels, [margin]                   the metric is the same at all levels
knee             over, [low], [high], [levels]            the place where the fall or rise ends
bound            condition, [low], [high], [unit]         the value itself lies in the range
range-of-ratios  conditions, baseline, [low], [high]      every one of the ratios lies in it
================ ======================================== =====================================

Of ``low`` and ``high`` at least one is there. Any kind may have ``each``, levels of factors for all
combinations of which the statement must hold.
"""

from __future__ import annotations

from typing import Any

CAPABILITIES = (
    *("separate-machines", "nic-hardware", "isolated-cpus", "busy-poll"),
    *("aufs", "residence-time"),
)
ENGINES = ("docker", "podman", "lxc", "rkt")

#: The margin of a kind where a claim gives none.
MARGINS = {"equivalence": 0.02, "fixed-offset": 0.02, "linear": 0.1, "constant-product": 0.1}

_TEXT = {"type": "string", "minLength": 1}
_NAME = {"type": "string", "pattern": "^[a-z0-9][a-z0-9.-]*$"}
_NUMBER = {"type": "number"}
_WHOLE = {"type": "integer", "minimum": 1}
_LEVEL = {"type": ["string", "number"]}
_CELL = {"type": "object", "minProperties": 1, "additionalProperties": _LEVEL}
_FIXED = {"type": "object", "additionalProperties": _LEVEL}
_SIDE = {"enum": ["higher", "lower"]}
_WAY = {"enum": ["increasing", "decreasing"]}
_MARGIN = {"type": "number", "exclusiveMinimum": 0}
_LEVELS = {"type": "array", "minItems": 2, "uniqueItems": True, "items": _LEVEL}
_PAIR = {"condition": _CELL, "baseline": _CELL}
_RANGE = {"low": _NUMBER, "high": _NUMBER}
_CELLS = {"type": "array", "minItems": 2, "uniqueItems": True, "items": _CELL}

#: Of each kind: the fields that must be there, and those that may.
_KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "difference": (_PAIR | {"direction": _SIDE}, {"at_least": _MARGIN}),
    "equivalence": (_PAIR, {"margin": _MARGIN}),
    "ratio": (_PAIR, _RANGE),
    "order": ({"cells": _CELLS, "direction": _WAY}, {}),
    "contrast": (_PAIR | {"condition2": _CELL, "baseline2": _CELL, "direction": _SIDE}, {}),
    "fixed-offset": (_PAIR | {"over": _TEXT}, {"margin": _MARGIN, "levels": _LEVELS}),
    "linear": ({"over": _TEXT, "direction": _WAY}, {"margin": _MARGIN, "levels": _LEVELS}),
    "monotone": ({"over": _TEXT, "direction": _WAY}, {"levels": _LEVELS}),
    "constant-product": ({"over": _TEXT, "levels": _LEVELS}, {"margin": _MARGIN}),
    "knee": ({"over": _TEXT}, _RANGE | {"levels": _LEVELS}),
    "bound": ({"condition": _CELL}, _RANGE | {"unit": _TEXT}),
    "range-of-ratios": ({"conditions": _CELLS, "baseline": _CELL}, _RANGE),
}

_NEEDS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "capabilities": {"type": "array", "items": {"enum": list(CAPABILITIES)}},
        "cores": _WHOLE,
        "cores_at_most": _WHOLE,
        "hosts": _WHOLE,
        "link_gbit_per_s": _MARGIN,
        "samples": _WHOLE,
        "engine": {"enum": list(ENGINES)},
    },
    "additionalProperties": False,
}
_PUBLISHED: dict[str, Any] = {
    "type": "object",
    "properties": {
        "unit": _TEXT,
        "stated": {"anyOf": [{"type": "number"}, {"const": True}]},
        "compute": _TEXT,
        "from": {"type": "object", "minProperties": 1},
    },
    "required": ["unit"],
    "anyOf": [{"required": ["stated"]}, {"required": ["compute"]}],
    "dependentRequired": {"compute": ["from"], "from": ["compute"]},
    "additionalProperties": False,
}
_EVERY: dict[str, Any] = {
    "id": _NAME,
    "source": _NAME,
    **dict.fromkeys(("place", "statement", "study", "kind", "metric"), _TEXT),
}
_ANY: dict[str, Any] = {
    "statistic": _TEXT,
    "where": _FIXED,
    "each": {"type": "object", "minProperties": 1, "additionalProperties": _LEVELS},
    "blocks": {"type": "integer", "minimum": 2},
    "note": {"type": "string"},
    "needs": _NEEDS,
    "same": _NEEDS,
    "published": _PUBLISHED,
    "checks": {"type": "array", "uniqueItems": True, "items": _NAME},
}


def _shape(required: dict[str, Any], optional: dict[str, Any]) -> dict[str, Any]:
    shape = {
        "type": "object",
        "properties": _EVERY | required | _ANY | optional,
        "required": [*_EVERY, *required],
        "additionalProperties": False,
    }
    if "low" in optional:
        shape["anyOf"] = [{"required": ["low"]}, {"required": ["high"]}]
    return shape


#: The schema of a claim of each kind.
SHAPES = {kind: _shape(*fields) for kind, fields in _KINDS.items()}

#: The schema of ``[studies.NAME]``.
STUDY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": _TEXT,
        "factors": {
            "type": "object",
            "additionalProperties": {
                "anyOf": [{"const": "number"}, {"type": "array", "minItems": 1, "items": _TEXT}]
            },
        },
        "metrics": {"type": "object", "additionalProperties": {"enum": ["samples", "trial"]}},
    },
    "required": ["text", "factors", "metrics"],
    "additionalProperties": False,
}
