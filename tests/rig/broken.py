"""Engines that start something else than a placement says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from labkit.hosts.target import Target
from labkit.placement import Placement
from labkit.runtimes import RUNTIMES, Instance
from labkit.runtimes.base import Started


def broken(
    engine: str,
    really: Placement | None = None,
    *,
    options: tuple[str, ...] = (),
    image: str = "",
    after: Callable[[Target, Started], Any] | None = None,
) -> Any:
    """Return an engine that starts another placement, or with other options or another image.

    The options of ``docker run`` replace those of the network. `after` is called with the target
    and what was started, before anything is checked.
    """
    kind = type(RUNTIMES[engine])

    class Broken(kind):  # type: ignore[misc, valid-type]
        def start(self, instance: Instance) -> Started:
            target = instance.target
            images = {**target.images}
            if image:
                images["net"] = replace(images["net"], reference=image)
            changed = replace(target, images=images)
            placement = really or instance.placement
            started = super().start(replace(instance, target=changed, placement=placement))
            if after:
                after(target, started)
            return started  # type: ignore[no-any-return]

        def network(self, instance: Instance) -> list[str]:
            return list(options) or super().network(instance)

    return Broken()
