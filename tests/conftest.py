"""What every test run shares: when rig and browser tests can run, and what is said at the end.

``LABKIT_REQUIRE_RIG=1`` (set by ``.ci/run`` where a rig can be had) makes a skipped rig test, or a
run without any, a failure, except where a program that no distribution packages is not on PATH.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# A shell without job control starts background jobs with SIGINT ignored, and children inherit that;
# some tests send it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

#: How long an example takes says more about the machine than about the code.
settings.register_profile(
    "labkit",
    deadline=None,
    max_examples=int(os.environ.get("LABKIT_EXAMPLES", "50")),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile(
    "ci", parent=settings.get_profile("labkit"), derandomize=True, print_blob=True
)
settings.load_profile("ci" if os.environ.get("CI") else "labkit")

SBIN = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"])
RIG_PROGRAMS = ("dockerd", "docker", "sockperf", "sshd", "ip", "nsenter")
REQUIRED = os.environ.get("LABKIT_REQUIRE_RIG", "") not in ("", "0")
RAN = pytest.StashKey[list[str]]()
SKIPPED = pytest.StashKey[dict[str, str]]()


def _no_rig_because() -> str:
    """Return why the virtual rig cannot be brought up here, or an empty string."""
    if os.geteuid() != 0:
        return "not root: the virtual rig needs network namespaces (sudo make test)"
    missing = [name for name in RIG_PROGRAMS if shutil.which(name, path=SBIN) is None]
    if missing:
        return f"not installed: {', '.join(missing)} (make setup names the packages)"
    tried = subprocess.run(
        ["unshare", "--net", "true"], capture_output=True, text=True, check=False
    )
    if tried.returncode != 0:
        return f"no network namespaces here: {tried.stderr.strip()}"
    return ""


def _engine_version() -> str:
    """Return the version of the Docker Engine on this machine."""
    program = shutil.which("dockerd", path=SBIN)
    if program is None:
        return "(not installed)"
    text = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    return text.stdout.removeprefix("Docker version ").split(",")[0].strip() or "(unknown)"


def pytest_configure(config: pytest.Config) -> None:
    config.stash[RAN] = []
    config.stash[SKIPPED] = {}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    on_rig = [item for item in items if item.get_closest_marker("rig")]
    reason = _no_rig_because() if on_rig else ""
    if reason:
        for item in on_rig:
            item.add_marker(pytest.mark.skip(reason=reason))
    in_browser = [item for item in items if item.get_closest_marker("browser")]
    if in_browser and shutil.which("chromium") is None:
        for item in in_browser:
            item.add_marker(pytest.mark.skip(reason="chromium is not installed (make setup-test)"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if item.get_closest_marker("rig") is None:
        return report
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        item.config.stash[SKIPPED][item.nodeid] = reason
        if REQUIRED and not reason.endswith("is not on PATH"):
            report.outcome = "failed"
            report.longrepr = f"LABKIT_REQUIRE_RIG is set, and this rig test did not run: {reason}"
    elif report.when == "call":
        item.config.stash[RAN].append(item.nodeid)
    return report


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    none_ran = not session.config.stash[RAN] and not session.config.option.collectonly
    if REQUIRED and none_ran and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    ran = terminalreporter.config.stash[RAN]
    skipped = terminalreporter.config.stash[SKIPPED]
    # A run of other tests has none, and "0 ran" would read as if none had run at all.
    if not ran and not skipped and not REQUIRED:
        return
    terminalreporter.section("rig")
    if terminalreporter.config.option.verbose >= 0 and len(ran) <= 200:
        for name in ran:
            terminalreporter.write_line(f"ran {name}")
    terminalreporter.write_line(f"rig tests: {len(ran)} ran on Docker Engine {_engine_version()}")
    for reason in sorted(set(skipped.values())):
        count = list(skipped.values()).count(reason)
        terminalreporter.write_line(f"rig tests: {count} did not run: {reason}")
    if REQUIRED and not ran:
        terminalreporter.write_line("LABKIT_REQUIRE_RIG is set and no rig test ran", red=True)
