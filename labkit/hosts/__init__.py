"""Machines under control: running commands, detached jobs, facts, and journalled settings."""

from labkit.hosts.host import Host, Result, Settings, SshHost, script

__all__ = ["Host", "Result", "Settings", "SshHost", "script"]
