"""Machines under control: running commands, detached jobs, facts, and journalled settings."""

from labkit.hosts.facts import collect_facts, parse_facts
from labkit.hosts.host import Host, LocalHost, Result, SshHost, json_rows, script
from labkit.hosts.jobs import Job, labelled, start_job, stop_labelled
from labkit.hosts.journal import Outcome, restore
from labkit.hosts.tuning import Tuning

__all__ = [
    "Host",
    "Job",
    "LocalHost",
    "Outcome",
    "Result",
    "SshHost",
    "Tuning",
    "collect_facts",
    "json_rows",
    "labelled",
    "parse_facts",
    "restore",
    "script",
    "start_job",
    "stop_labelled",
]
