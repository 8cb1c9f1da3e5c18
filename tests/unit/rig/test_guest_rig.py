"""Guests: what a specification asks for, why there can be none, and what they are made of."""

from __future__ import annotations

import errno
import fcntl
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.errors import RigError, UsageError
from labkit.rig import GuestRig, InventoryRig, Rig, guests, kind_of, lock, netns, qemu
from labkit.rig.qemu import Guest
from labkit.rig.rigfile import read_rigfile

GENERATOR, SUT = Guest("generator", (2, 3), 2048), Guest("sut", (4, 5), 2048)
CLEAN = Guest("clean", (4, 5), 2048)


def value(argv: list[str], option: str) -> str:
    return argv[argv.index(option) + 1]


@pytest.fixture
def able(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine that can have guests; returns the folder of its device and its CPU's flags."""
    monkeypatch.setattr(lock, "is_root", lambda: True)
    monkeypatch.setattr(guests.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(guests.kernel_probe, "find_tool", lambda name: f"/usr/bin/{name}")
    for name, text in (("KVM", ""), ("CPUINFO", "processor : 0\nflags : fpu svm sse\n")):
        path = tmp_path / name
        path.write_text(text)
        monkeypatch.setattr(guests, name, path)
    monkeypatch.setattr(guests, "TUN", tmp_path)
    monkeypatch.setattr(fcntl, "ioctl", lambda *words: guests.os.dup(0))
    return tmp_path


def test_a_machine_with_kvm_can_have_guests(able: Path) -> None:
    assert guests.unusable() == ("", "")
    assert kind_of("kvm") is kind_of("kvm:tcg,clean") is GuestRig
    assert kind_of("rig.toml") is InventoryRig
    GuestRig.check("kvm")


def test_words_that_nothing_is_known_by_are_wrong_use(able: Path) -> None:
    assert guests.asked("kvm:tcg,clean") == {"tcg", "clean"} and not guests.asked("kvm")
    with pytest.raises(UsageError, match="'fast'") as raised:
        GuestRig.check("kvm:fast")
    assert "kvm:clean" in raised.value.remedy


def test_a_cpu_without_virtualisation_is_said_before_any_work(able: Path) -> None:
    guests.CPUINFO.write_text("flags : fpu sse\n")
    with pytest.raises(RigError, match="neither svm nor vmx") as raised:
        GuestRig.check("kvm")
    assert "firmware" in raised.value.remedy and "kvm:tcg" in raised.value.remedy
    GuestRig.check("kvm:tcg")  # emulation needs none


def test_a_device_that_is_absent_or_refuses_is_named(
    able: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*words: object) -> int:
        raise OSError(errno.EBUSY, "Device or resource busy")

    monkeypatch.setattr(fcntl, "ioctl", refused)
    assert "makes no virtual machine: Device or resource busy" in guests.unusable()[0]
    guests.KVM.unlink()
    assert "cannot be opened: No such file" in guests.unusable()[0]


def test_who_is_no_root_and_what_is_missing_is_said_with_a_remedy(
    able: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guests.kernel_probe, "find_tool", lambda name: None)
    why, remedy = guests.unusable(emulated=True)
    assert "qemu-system-x86" in why and remedy.startswith("apt-get install")
    assert {"qemu-system-x86", "mmdebstrap", "e2fsprogs"} <= set(remedy.split())
    monkeypatch.setattr(lock, "is_root", lambda: False)
    assert guests.unusable(emulated=True) == ("this user is not root", "run as root")
    with pytest.raises(RigError, match="not root"), Rig.open("kvm:tcg", say=print):
        pytest.fail("it was opened")


@given(st.lists(st.integers(1, 2), min_size=1, max_size=32))
def test_guests_get_whole_cores_of_their_own_where_there_are_two(threads: list[int]) -> None:
    numbers = iter(range(100))
    cores = [[next(numbers) for _ in range(count)] for count in threads]
    generator, sut, rest = guests.dealt(cores)
    of = {cpu: index for index, core in enumerate(cores) for cpu in core}
    held = [{of[cpu] for cpu in cpus} for cpus in (generator, sut)]
    assert [len(cpus) for cpus in (generator, sut)] == [
        sum(len(cores[core]) for core in cores_of) for cores_of in held
    ]
    assert len(held[0]) == len(held[1]) > 0
    if len(cores) == 1:
        assert generator == sut and not rest
    else:
        assert not held[0] & held[1] and not {of[cpu] for cpu in rest} & (held[0] | held[1])
        assert {*generator, *sut, *rest} == {*of}
        assert bool(rest) == (len(cores) > 2)


def test_the_rig_file_describes_the_guests(tmp_path: Path) -> None:
    path = tmp_path / "rig.toml"
    path.write_text(guests.rig_toml("kvm-clean", [GENERATOR, SUT, CLEAN]))
    described = read_rigfile(path)
    assert described.shared_machine and described.patience == 0 and described.name == "kvm-clean"
    assert list(described.machines) == ["generator", "sut", "clean"]
    sut = described.machines["sut"]
    assert sut.cpus == "1" and sut.layer2 and sut.layer2.port == "eth1"
    assert f"--net=/run/netns/{qemu.NAMESPACE} " in str(sut.gateway)
    assert set(described.networks) == {"macvlan", *list(guests.networks.NAMES)[1:]}
    lab = {text for ports in netns.PORTS.values() for port in ports for text in port.addresses}
    assert not lab & {text for ports in qemu.PORTS.values() for p in ports for text in p.addresses}


def test_the_command_of_a_guest() -> None:
    argv = qemu.command(SUT, Path("/image"), emulated=False, vhost=True)
    assert argv[0] == "qemu-system-x86_64"
    assert (value(argv, "-accel"), value(argv, "-cpu")) == ("kvm", "host")
    assert (value(argv, "-smp"), value(argv, "-m")) == ("2", "2048M")
    assert "systemd.hostname=sut systemd.wants=docker.service" in value(argv, "-append")
    ports = [argv[at + 1] for at, text in enumerate(argv) if text == "-netdev"]
    assert len(ports) == 2 and all(text.endswith(",vhost=on") for text in ports)
    emulated = qemu.command(GENERATOR, Path("/image"), emulated=True, vhost=False)
    assert value(emulated, "-accel") == "tcg,thread=multi"
    assert "docker" not in value(emulated, "-append") and "vhost=on" not in str(emulated)


def test_an_address_in_the_image_is_that_of_one_card() -> None:
    files = qemu._files()
    macs = [qemu.mac(role, index) for role in qemu.PORTS for index in range(len(qemu.PORTS[role]))]
    for role in qemu.PORTS:
        text = files[f"etc/systemd/network/{role}-eth0.network"]
        assert qemu.mac(role, 0) in text and f"Address={qemu.address(role)}/24" in text
    assert len(set(macs)) == len(macs) == 4
    assert json.loads(files["etc/docker/daemon.json"])["bip"] == "198.19.0.1/24"


def test_the_image_has_what_studies_need_and_another_recipe_is_another_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert {"sockperf", "docker.io", "nftables", "openssh-server"} <= set(qemu.packages())
    assert "chromium" not in qemu.packages() and "docker-cli" not in qemu.packages()
    before = qemu.image_folder()
    monkeypatch.setattr(qemu, "packages", lambda: ["linux-image-cloud-amd64"])
    assert qemu.image_folder() != before


def test_threads_that_are_vcpus_are_found_by_their_names() -> None:
    names = {7: "qemu-system-x86", 9: "CPU 1/KVM", 8: "CPU 0/KVM", 10: "vhost-7", 11: "worker"}
    assert qemu.vcpu_threads(names) == {0: 8, 1: 9}


def test_caveats_say_what_is_shared() -> None:
    own = guests.caveats({"generator": GENERATOR, "sut": SUT, "clean": CLEAN}, [0], emulated=False)
    assert "separate kernels, not separate machines" in own[0]
    assert own[1] == "each vCPU is pinned to a host CPU: generator 2,3; sut and clean 4,5"
    assert len(own) == 2
    one = {"generator": GENERATOR, "sut": Guest("sut", (2, 3), 2048)}
    shared = guests.caveats(one, [], emulated=True)
    assert shared[0] == guests.EMULATED_CAVEAT and shared[0].startswith("emulated: timings mean")
    assert "share the host's CPUs" in shared[3] and "no CPU left for the harness" in shared[4]
