#!/usr/bin/env python3
"""Print a rig.toml made of an Ansible inventory: ansible-inventory --list | from_ansible.py.

A group is named as its role: generator, sut, clean, peer, collector; its first host takes it. How
the host is reached comes from Ansible's own variables. All else are variables `labkit_KEY`, with
the keys of rig.toml: labkit_addresses, labkit_interfaces, labkit_cpus, and so on.
"""

import json
import sys

ROLES = ("generator", "sut", "clean", "peer", "collector")
#: Keys of rig.toml, and the variables that have their value in an inventory.
REACHED = {
    "ssh": ("ansible_host", "ansible_ssh_host"),
    "user": ("ansible_user", "ansible_ssh_user"),
    "port": ("ansible_port", "ansible_ssh_port"),
    "key": ("ansible_ssh_private_key_file", "ansible_private_key_file"),
    "sudo": ("ansible_become",),
}
LISTS, TEXTS = ("addresses", "interfaces", "mirrors"), ("cpus",)


def convert(inventory: dict) -> str:
    """Return the text of a rig.toml for what `ansible-inventory --list` printed."""
    lines = []
    for role in ROLES:
        hosts = inventory.get(role, {}).get("hosts", [])
        if not hosts:
            continue
        given = inventory["_meta"]["hostvars"].get(hosts[0], {})
        keys = {"ssh": hosts[0]}
        names = [(key, name) for key, names in REACHED.items() for name in names]
        keys |= {key: given[name] for key, name in names if name in given}
        for name, value in given.items():
            key = name.removeprefix("labkit_")
            if key != name:
                value = value.split(",") if key in LISTS and isinstance(value, str) else value
                keys[key] = str(value) if key in TEXTS else value
        lines += [f"[hosts.{role}]"]
        # Texts, numbers, lists and booleans are written in TOML as in JSON.
        lines += [f"{key} = {json.dumps(value)}" for key, value in keys.items()] + [""]
    return "\n".join(lines)


if __name__ == "__main__":
    print(convert(json.load(sys.stdin)), end="")
