#!/usr/bin/env python3
"""Print a rig.toml made of an Ansible inventory: ansible-inventory --list | from_ansible.py.

A group is named as its role: generator, sut, clean, peer, collector; its first host takes it. How
the host is reached comes from Ansible's own variables. All else are variables `labkit_KEY`, with
the keys of rig.toml: labkit_addresses, labkit_interfaces, labkit_cpus, and so on.
"""

import json
import re
import sys

ROLES = ("generator", "sut", "clean", "peer", "collector")
#: Keys of rig.toml by the variable that has their value in an inventory.
KEYS = {
    **dict.fromkeys(("ansible_ssh_host", "ansible_host"), "ssh"),
    **dict.fromkeys(("ansible_ssh_user", "ansible_user"), "user"),
    **dict.fromkeys(("ansible_ssh_port", "ansible_port"), "port"),
    **dict.fromkeys(("ansible_ssh_private_key_file", "ansible_private_key_file"), "key"),
    "ansible_become": "sudo",
}


def flag(value):
    """Return a boolean, which an inventory of INI has as a text."""
    names = dict.fromkeys(("yes", "true", "on", "y", "t", "1"), True)
    names |= dict.fromkeys(("no", "false", "off", "n", "f", "0"), False)
    return names.get(str(value).lower(), value)


def number(value):
    """Return a number, which may be a text."""
    return int(value) if str(value).isdigit() else value


def several(value):
    """Return a list, which may be a text with commas."""
    return [one.strip() for one in value.split(",")] if isinstance(value, str) else value


def cpus(value):
    """Return a CPU list as a text: INI makes a list of ``2,3``, and a number of ``2``."""
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


#: How the values of keys are converted; those of others are taken as they are.
TYPES = {"port": number, "sudo": flag, "cpus": cpus, "user": str, "ssh": str}
TYPES |= dict.fromkeys(("addresses", "interfaces", "mirrors"), several)


def hosts_of(inventory, group):
    """Return the hosts of a group, and of the groups in it."""
    entry = inventory.get(group) or {}
    below = [host for child in entry.get("children", []) for host in hosts_of(inventory, child)]
    return [*entry.get("hosts", []), *below]


def convert(printed):
    """Return the text of a rig.toml for what `ansible-inventory --list` printed."""
    try:
        # Below warnings.
        document = re.split("^(?={)", printed, maxsplit=1, flags=re.MULTILINE)[1]
        inventory = json.JSONDecoder().raw_decode(document)[0]
        variables = inventory["_meta"]["hostvars"]
    except (ValueError, LookupError):
        sys.exit("this is not the output of: ansible-inventory --list (without --export or --yaml)")
    lines = []
    for role in ROLES:
        hosts = hosts_of(inventory, role)
        if not hosts:
            continue
        values = {"ssh": hosts[0]}
        for name, value in sorted(variables.get(hosts[0], {}).items()):
            key = KEYS.get(name, name.removeprefix("labkit_"))
            where = f"host {hosts[0]}: the variable {name}"
            if key == name:
                if name.startswith("ansible_"):  # such as a jump host in ansible_ssh_common_args
                    print(f"{where} is left out: rig.toml has no such key", file=sys.stderr)
                continue
            if value is None:  # YAML has the name without a value
                continue
            if isinstance(value, dict):
                sys.exit(f"{where} is encrypted or a mapping: decrypt it first, or write its value")
            if "{{" in str(value) or "{%" in str(value):
                sys.exit(f"{where} is a template: write its value, as --list does not resolve it")
            values[key] = TYPES.get(key, lambda given: given)(value)
        lines += [f"[hosts.{role}]"]
        # Texts, numbers, lists and booleans are written in TOML as in JSON.
        for key, value in values.items():
            lines += [f"{key} = {json.dumps(value, ensure_ascii=False)}"]
        lines += [""]
    return "\n".join(lines)


if __name__ == "__main__":
    print(convert(sys.stdin.read()), end="")
