"""Machines that the lab controls: run commands there, keep jobs, read facts, turn levers."""

from labkit.hosts.base import Host, Result, script
from labkit.hosts.facts import collect_facts, parse_facts
from labkit.hosts.jobs import Job, start_job
from labkit.hosts.local import LocalHost
from labkit.hosts.processes import labelled, stop_labelled
from labkit.hosts.restoring import Outcome, conflict, restore
from labkit.hosts.ssh import SshHost
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
    "conflict",
    "labelled",
    "parse_facts",
    "restore",
    "script",
    "start_job",
    "stop_labelled",
]
