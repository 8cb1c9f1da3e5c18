"""Machines under control: running commands, detached jobs, facts, and journalled settings."""

from labkit.hosts.host import Host, LocalHost, Result, SshHost, script
from labkit.hosts.jobs import Job, labelled, start_job, stop_labelled
from labkit.hosts.settings import Settings, restore

__all__ = [
    "Host",
    "Job",
    "LocalHost",
    "Result",
    "Settings",
    "SshHost",
    "labelled",
    "restore",
    "script",
    "start_job",
    "stop_labelled",
]
