"""iperf3: throughput of TCP, or of UDP at a rate, as the receiver counts it."""

from labkit.placement import Workload
from labkit.tools.base import Client, Measurement, check_duration, check_numbers, json_in, reading

PORT = 5201
#: By how much the counts of both ends may differ: a part is on its way at the end.
_UNDER_WAY = 0.03
#: Both ends report by TCP, so that its port must be published for both protocols.
SERVER = Workload(tuple(f"iperf3 --server -4 --port {PORT}".split()), PORT, ("tcp", "udp"), "apps")


def load(address: str, *, protocol: str, seconds: int, mbit_per_s: float = 0.0) -> Client:
    """Return the client that sends for whole seconds: TCP, or UDP at a rate (0: at any)."""
    argv = f"iperf3 --client {address} -4 --port {PORT} --json --time {seconds}"
    if protocol == "udp":
        argv += f" --udp --bitrate {round(mbit_per_s * 1e6)}"
    seen = ("tcp", "udp") if protocol == "udp" else ("",)
    return Client(tuple(argv.split()), address, seconds + 2.0, parse, protocols=seen)


def parse(stdout: str, log: str = "") -> Measurement:
    """Read the JSON object that both ends report: rates, losses, and their use of a CPU."""
    with reading("iperf3", stdout, needs="iperf3 3.12"):
        report = json_in(stdout)
        if "error" in report:
            raise ValueError(str(report["error"]))
        end = report["end"]
        sent, received = end["sum_sent"], end["sum_received"]
        if not 0 < received["bytes"] <= (1 + _UNDER_WAY) * sent["bytes"]:
            raise ValueError(f"{sent['bytes']} bytes were sent, and {received['bytes']} received")
        for one in (sent, received):
            check_duration(one["seconds"], report["start"]["test_start"]["duration"])
            if abs(one["bytes"] * 8 / one["seconds"] / one["bits_per_second"] - 1) > 0.01:
                raise ValueError(f"{one['bytes']} bytes are not {one['bits_per_second']} bit/s")
        metrics = {"throughput_mbit_per_s": received["bits_per_second"] / 1e6}
        metrics["sent_mbit_per_s"] = sent["bits_per_second"] / 1e6
        if report["start"]["test_start"]["protocol"] == "UDP":
            total, arrived = end["sum"], received["bytes"] / sent["bytes"]
            packets, lost = total["packets"], total["lost_packets"]
            counted = (received["packets"] - received["lost_packets"]) / packets
            agree = lost == received["lost_packets"] and abs(counted - arrived) <= _UNDER_WAY
            if not (0 <= lost <= packets and agree):
                came = f"though {arrived:.1%} of the bytes arrived: have both ends one version?"
                raise ValueError(f"{lost} of {packets} datagrams were lost, {came}")
            metrics |= {"datagrams": packets, "datagrams_lost": lost}
            metrics |= {"loss": lost / packets, "jitter_ns": total["jitter_ms"] * 1e6}
        else:
            metrics["retransmits"] = sent["retransmits"]
        metrics = {name: float(value) for name, value in metrics.items()}
        check_numbers(metrics)
    return Measurement({}, metrics, int(metrics.get("datagrams", 0)))


LOADS = {"iperf3": load}
APPLICATIONS = {"iperf3 tcp": {"protocol": "tcp"}, "iperf3 udp": {"protocol": "udp"}}
