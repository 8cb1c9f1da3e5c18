"""Machines under control: running commands, detached jobs, facts, and journalled settings."""

from labkit.hosts.facts import collect_facts
from labkit.hosts.host import Host, LocalHost, Result, SshHost, json_rows, script
from labkit.hosts.jobs import Job, labelled, start_job, stop_labelled
from labkit.hosts.settings import Outcome, Settings, restore

#: The name that treatments and rigs use.
Tuning = Settings

__all__ = [
    "Host",
    "Job",
    "LocalHost",
    "Outcome",
    "Result",
    "Settings",
    "SshHost",
    "Tuning",
    "collect_facts",
    "json_rows",
    "labelled",
    "restore",
    "script",
    "start_job",
    "stop_labelled",
]
