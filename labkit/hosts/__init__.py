"""Machines under control: running commands, detached jobs, facts, and journalled settings."""

from labkit.hosts.host import Host, Job, Result, Settings, SshHost, script

__all__ = ["Host", "Job", "Result", "Settings", "SshHost", "script"]
