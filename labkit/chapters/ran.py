"""What was run, what was refused, and on what."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from labkit.chapters.show import put, say

if TYPE_CHECKING:
    from labkit.chapters.page import Page

#: What the table of hosts shows of their facts.
_PARTS = {
    "cpu": ["model", "count", "smt", "governor", "isolated"],
    "idle": ["driver", "governor"],
    "kernel": ["release", "clock_source"],
    "virtualisation": ["detected", "product"],
    "engine": ["version"],
}


def what_was_run(page: Page, by: list[str]) -> None:
    """Show counts, settings, trials of each condition, the margin and what was refused."""
    plan = page.plan
    planned = len(plan["conditions"]) * plan["blocks"]
    done = sum(one["status"] == "ok" for one in page.campaign.records)
    count = int(page.samples["n"].sum()) if page.samples is not None else 0
    samples = f" {count:,} samples;" if count else ""
    pilot = " **Fewer than 5 blocks: this is a pilot.**" if page.pilot else ""
    blocks = f"{page.n_blocks} block{'' if page.n_blocks == 1 else 's'}"
    counts = f"{done} of {planned} planned trials in {blocks};{samples}"
    say(f"{counts} {page.failed} attempts failed.{pilot}")
    pd.options.display.max_colwidth = None
    settings = pd.Series({**plan["settings"], "seed": plan["seed"]}).astype(str)
    put(settings.to_frame("setting"), source="settings and seed of plan.json")
    if len(page.trials):
        put(_cells(page.trials, by))
    say(_margin(page))
    refusals = pd.DataFrame(plan["refusals"], columns=["condition", "reason"])
    if len(refusals):
        say("What the rig cannot run was refused before anything was measured:")
    put(refusals, instead="Nothing was refused.", source="refusals of plan.json")


def _cells(trials: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Return how many trials each condition has."""
    counted = trials.groupby(by, observed=True).size()
    if len(by) == 1:
        return counted.to_frame("trials")
    return pd.DataFrame(counted.unstack(by[-1], fill_value=0))


def _margin(page: Page) -> str:
    if page.margin != page.planned_margin:
        return (
            f"**Margin: {page.margin:.1%}, chosen after the plan, which has "
            f"{page.planned_margin:.1%}.** Verdicts of equality below hold for a margin that was "
            "not fixed before looking."
        )
    origin = "as planned" if "margin" in page.plan else "labkit's default"
    return f"Margin: {page.margin:.1%}, {origin}."


def the_rig(page: Page) -> None:
    """Show the rig's caveats, what it lacks, its CPUs and its hosts."""
    rig = page.rig
    caveats = "\n".join(f"- {caveat}" for caveat in rig.get("caveats", []))
    say(caveats or "The rig names no caveat.")
    lacking = pd.Series(rig.get("capabilities", {}), dtype="object").astype(str)
    put(
        lacking.to_frame("why it cannot be had here"),
        instead="The rig lacks nothing.",
        source="rig.capabilities of plan.json",
    )
    cpus = pd.Series(rig.get("cpu_map", {}), dtype="object").astype(str).to_frame("CPUs")
    put(cpus, source="rig.cpu_map of plan.json")
    facts = "the facts of the last session (sessions/*.json)"
    put(_hosts(page), instead="No facts of the hosts were kept.", source=facts)


def _hosts(page: Page) -> pd.DataFrame:
    """Return what is known of each host, a column a host."""
    stable = {role: facts.get("stable", {}) for role, facts in page.campaign.facts.items()}
    rows = {
        f"{part} {name}": {
            role: (facts.get(part) or {}).get(name) for role, facts in stable.items()
        }
        for part, names in _PARTS.items()
        for name in names
    }
    table = pd.DataFrame.from_dict(rows, orient="index").dropna(how="all")
    # No CPU may be isolated, no host but one may have an engine; what was not found is a mapping.
    words = {"": "none", "nan": "none", "None": "none", "{}": "not stated"}
    return table.map(lambda one: words.get(str(one), str(one)))
