"""How long does it take to pair a packet capture? labkit against tshark and a join in pandas.

Writes captures of a ping-pong with sockperf's header, both directions in one file, in which some
replies are lost, duplicated or reordered: one of packets of equal size, and one of four sizes. Each
is read from the page cache and paired by labkit, and by the usual ``tshark -T fields`` with a join
of its output in pandas. Without tshark, a loop in plain Python over the records takes its place.
Both must find the same residence times. Prints; it decides nothing by a time.

Example: make bench, or: .venv/bin/python benchmarks/capture.py --packets 100000
"""

from __future__ import annotations

import argparse
import io
import os
import platform
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from labkit import pcap

CLIENT, SERVER = "198.18.0.1", "198.18.0.2"
#: UDP payloads; sockperf's header has 14 bytes of them.
SIZES = {"one size": [64], "four sizes": [28, 64, 200, 512]}
START, EVERY = 1_700_000_000_000_000_000, 20_000
#: One reply of so many is lost, and one is duplicated.
RARE = 1_000
#: The target of the ratio, printed with the measured one.
AIM = 50
#: labkit's calls in a run, of which the median counts: a single one is easily disturbed.
TIMES = 5

HEAD = np.dtype(
    [
        *((name, "<u4") for name in ("seconds", "ns", "captured", "wire")),
        *(("destination", "V6"), ("source", "V6"), ("type", ">u2")),
        *(("version", "u1"), ("tos", "u1"), ("total", ">u2"), ("id", ">u2"), ("part", ">u2")),
        *(("ttl", "u1"), ("protocol", "u1"), ("sum", ">u2"), ("src", ">u4"), ("dst", ">u4")),
        *((name, ">u2") for name in ("sport", "dport", "length", "udp_sum")),
        *(("number", ">u8"), ("flags", ">u2"), ("size", ">u4")),
    ]
)
#: Bytes of a record before the payload: its own header, then Ethernet, IPv4 and UDP.
RECORD, HEADERS = 16, 42


def say(text: str) -> None:
    """Write a line of progress."""
    print(text, file=sys.stderr, flush=True)


def traffic(rng: np.random.Generator, messages: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return times, message numbers and whether they are replies, of all packets by time."""
    numbers = np.arange(messages)
    sent = START + EVERY * numbers + rng.integers(0, EVERY // 4, messages)
    stays = (9_000 * rng.lognormal(0, 0.5, messages)).astype(np.int64)
    drawn = rng.permutation(messages)
    lost, twice = np.split(drawn[: 2 * (messages // RARE)], 2)
    answered = np.delete(numbers, lost)
    replies = np.concatenate([answered, twice])
    delays = np.repeat([0, 700], [len(answered), len(twice)])
    times = np.concatenate([sent, sent[replies] + stays[replies] + delays])
    which = np.concatenate([numbers, replies])
    back = np.arange(len(times)) >= messages
    order = np.argsort(times, kind="stable")
    return times[order], which[order], back[order]


def write(path: Path, messages: int, sizes: list[int]) -> int:
    """Write a capture in nanoseconds; return how many packets it has."""
    rng = np.random.default_rng(2015)
    times, numbers, back = traffic(rng, messages)
    payload = np.array(sizes)[numbers % len(sizes)]
    head = np.zeros(len(times), dtype=HEAD)
    head["seconds"], head["ns"] = np.divmod(times, 10**9)
    head["captured"] = head["wire"] = HEADERS + payload
    fixed = {"type": 0x0800, "version": 0x45, "ttl": 64, "protocol": 17, "flags": 3}
    for name, value in fixed.items():
        head[name] = value
    head["total"], head["length"], head["size"] = payload + 28, payload + 8, payload
    head["id"], head["number"] = numbers % 2**16, numbers
    addresses = [int.from_bytes(bytes(map(int, name.split(".")))) for name in (CLIENT, SERVER)]
    head["src"], head["dst"] = np.where(back, *addresses[::-1]), np.where(back, *addresses)
    head["sport"], head["dport"] = np.where(back, 11111, 40000), np.where(back, 40000, 11111)
    columns = np.arange(RECORD + HEADERS + max(sizes))
    with path.open("wb") as out:
        out.write(struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 262_144, 1))
        for first in range(0, len(head), 100_000):
            some = head[first : first + 100_000]
            rows = np.zeros((len(some), len(columns)), dtype=np.uint8)
            rows[:, : HEAD.itemsize] = some.view(np.uint8).reshape(len(some), -1)
            out.write(rows[columns < RECORD + some["wire"][:, None]].tobytes())
    return len(head)


def by_labkit(path: Path) -> np.ndarray:
    """Return the residence times that labkit finds, in the order of arrival."""
    packets = pcap.read(path)
    arrivals, departures = packets.where(dst=SERVER), packets.where(src=SERVER)
    return pcap.pair(arrivals, departures, pcap.number()).residence_ns


def by_tshark(path: Path) -> np.ndarray:
    """Return the same by tshark's fields and a join in pandas."""
    argv = ["tshark", "-n", "-r", str(path), "-T", "fields", "-e", "frame.time_epoch"]
    argv += ["-e", "ip.dst", "-e", "udp.payload"]
    done = subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True)
    names = ["time", "dst", "payload"]
    rows = pd.read_csv(io.StringIO(done.stdout), sep="\t", header=None, names=names, dtype=str)
    # A float cannot hold the ns of a day in this century.
    parts = rows["time"].str.split(".", expand=True)
    rows["ns"] = parts[0].astype("int64") * 10**9 + parts[1].astype("int64")
    rows["number"] = [int(text[:16], 16) for text in rows["payload"].str.replace(":", "")]
    inward = rows["dst"] == SERVER
    first = rows[~inward].drop_duplicates("number")
    both = rows[inward].merge(first, on="number", suffixes=("_in", "_out"))
    return (both["ns_out"] - both["ns_in"]).to_numpy()


def by_hand(path: Path) -> np.ndarray:
    """Return the same by a loop over the records and a dict."""
    data, place = path.read_bytes(), 24
    arrivals: list[tuple[int, int]] = []
    left: dict[int, int] = {}
    server = bytes(map(int, SERVER.split(".")))
    while place < len(data):
        seconds, ns, captured, _ = struct.unpack_from("<IIII", data, place)
        packet = place + RECORD
        (number,) = struct.unpack_from(">Q", data, packet + HEADERS)
        now = seconds * 10**9 + ns
        if data[packet + 30 : packet + 34] == server:
            arrivals.append((number, now))
        else:
            left.setdefault(number, now)
        place = packet + captured
    return np.array([left[number] - then for number, then in arrivals if number in left])


def timed(function: Callable[[Path], Any], path: Path) -> tuple[float, Any]:
    """Return the seconds that a call took, and what it returned."""
    began = time.perf_counter()
    made = function(path)
    return time.perf_counter() - began, made


def compare(path: Path, plain: Callable[[Path], np.ndarray], repeats: int) -> list[tuple]:
    """Time both on one capture, one after the other: (plain, labkit's calls) of each repeat."""
    by_labkit(path)  # the first call is slower, and brings the file into the page cache
    times = []
    for number in range(repeats):
        theirs, expected = timed(plain, path)
        ours = []
        for _ in range(TIMES):
            took, made = timed(by_labkit, path)
            ours.append(took)
            if not np.array_equal(made, expected):
                raise SystemExit(f"{path.name}: labkit and the plain way differ")
        times.append((theirs, ours))
        say(f"{path.name}: run {number + 1} of {repeats}, {theirs:.1f} s and {min(ours):.3f} s")
    return times


def show(name: str, theirs: float, ours: list[float]) -> None:
    """Print the times of one run, and with tshark the target of their ratio."""
    spread = f"{1e3 * np.median(ours):.0f} ms ({1e3 * min(ours):.0f} to {1e3 * max(ours):.0f})"
    aim = f" (aim: {AIM})" if "tshark" in name else ""
    print(f"  {name} {theirs:.2f} s, labkit {spread}, ratio {theirs / np.median(ours):.0f}{aim}")


def parts(path: Path) -> str:
    """Return labkit's time for reading, headers and pairing in ms, and its flags."""
    clocks = [time.perf_counter()]
    packets = pcap.read(path)
    clocks.append(time.perf_counter())
    arrivals, departures = packets.where(dst=SERVER), packets.where(src=SERVER)
    clocks.append(time.perf_counter())
    paired = pcap.pair(arrivals, departures, pcap.number())
    clocks.append(time.perf_counter())
    names = ("reading", "headers", "pairing")
    shown = ", ".join(
        f"{name} {1e3 * span:.0f}" for name, span in zip(names, np.diff(clocks), strict=True)
    )
    return f"{shown} ms\n    " + "\n    ".join(paired.flags)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--packets", type=int, default=1_000_000, help="packets of each capture (default 1000000)"
    )
    parser.add_argument("--repeats", type=int, default=1, help="runs of each (default 1)")
    options = parser.parse_args()
    plain, name = by_tshark, "tshark and pandas"
    if shutil.which("tshark") is None:
        plain, name = by_hand, "struct and a dict in plain Python"
        print("tshark is not on PATH (apt-get install tshark): compared with plain Python instead.")
    print(f"From a capture to residence times, {os.cpu_count()} CPUs, Python ", end="")
    print(f"{platform.python_version()}, load average before {os.getloadavg()[0]:.1f}.")
    with tempfile.TemporaryDirectory(prefix="labkit-capture-") as folder:
        for kind, sizes in SIZES.items():
            path = Path(folder) / f"{kind.replace(' ', '-')}.pcap"
            count = write(path, options.packets // 2, sizes)
            times = compare(path, plain, options.repeats)
            size = path.stat().st_size / 2**20
            print(f"\n{count:,} packets of {kind} ({size:,.0f} MiB), the same residence times:")
            for theirs, ours in times:
                show(name, theirs, ours)
            print(f"  of labkit's: {parts(path)}")
            path.unlink()


if __name__ == "__main__":
    sys.exit(main())
