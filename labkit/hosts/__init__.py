"""Machines under control: running commands, detached jobs, facts, and journalled settings."""

from labkit.hosts.host import Host, LocalHost, Result, SshHost, collect_facts, script
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
