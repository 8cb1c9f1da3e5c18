"""Machines under control: running commands, detached jobs, facts, and journalled settings."""

from labkit.hosts.facts import collect_facts
from labkit.hosts.host import Host, LocalHost, Result, SshHost, script
from labkit.hosts.jobs import Job, labelled, start_job, stop_labelled
from labkit.hosts.settings import Outcome, Settings, restore

__all__ = [
    "Host",
    "Job",
    "LocalHost",
    "Outcome",
    "Result",
    "Settings",
    "SshHost",
    "collect_facts",
    "labelled",
    "restore",
    "script",
    "start_job",
    "stop_labelled",
]
