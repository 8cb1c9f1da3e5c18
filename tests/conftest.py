"""When rig and browser tests can run, and must.

``LABKIT_REQUIRE_RIG=1`` (set by ``.ci/run`` where a rig can be had) makes a skipped rig test a
failure, except where a program that no distribution packages is not on PATH.
"""

import os
import shutil
import signal
import subprocess

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
    derandomize=bool(os.environ.get("CI")),
    print_blob=True,
)
settings.load_profile("labkit")

SBIN = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"])
RIG_PROGRAMS = ("dockerd", "docker", "sockperf", "sshd", "ip", "nsenter")
REQUIRED = os.environ.get("LABKIT_REQUIRE_RIG", "") not in ("", "0")


def _no_rig_because():
    """Return why the virtual rig cannot be brought up here, or an empty string."""
    if os.geteuid() != 0:
        return "not root: the virtual rig needs network namespaces (sudo make test)"
    missing = [name for name in RIG_PROGRAMS if shutil.which(name, path=SBIN) is None]
    if missing:
        return f"not installed: {', '.join(missing)} (make setup names the packages)"
    tried = subprocess.run(
        ["unshare", "--net", "true"], capture_output=True, text=True, check=False
    )
    return f"no network namespaces here: {tried.stderr.strip()}" if tried.returncode else ""


def pytest_collection_modifyitems(items):
    reasons = {}
    if any(item.get_closest_marker("rig") for item in items):
        reasons["rig"] = _no_rig_because()
    if shutil.which("chromium") is None:
        reasons["browser"] = "chromium is not installed (make setup-test)"
    for item in items:
        for name, reason in reasons.items():
            if reason and item.get_closest_marker(name):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    must = REQUIRED and item.get_closest_marker("rig") is not None
    if must and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not reason.endswith("is not on PATH"):
            report.outcome = "failed"
            report.longrepr = f"LABKIT_REQUIRE_RIG is set, and this rig test did not run: {reason}"
    return report
