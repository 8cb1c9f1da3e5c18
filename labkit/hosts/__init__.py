"""Machines under control: running commands, detached jobs, facts, and journalled settings."""

from labkit.hosts.host import Host, Job, LocalHost, Result, Settings, SshHost, script, stop_labelled

__all__ = ["Host", "Job", "LocalHost", "Result", "Settings", "SshHost", "script", "stop_labelled"]
