"""A part of a question: some of its panels, arms and seeds, trained now; what it leaves out is missing until later."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..registry import suggestion
from ..training.strict import ConfigError
from .store import Manifest
from .study import Arm


@dataclass(frozen=True)
class Part:
    """``only`` holds panels (``even_pairs``) and arms of panels (``listops:full``); empty: all of them."""

    only: tuple[str, ...] = ()
    first_seeds: int | None = None

    def of(self, manifest: Manifest) -> Manifest:
        """The manifest with this part of its runs."""
        arms = [arm for arm in manifest.arms if not self.only or {arm.panel, _name(arm)} & set(self.only)]
        if self.first_seeds is None:
            return replace(manifest, arms=tuple(arms))
        return replace(manifest, arms=tuple(replace(a, seeds=manifest.seeds_of(a)[: self.first_seeds]) for a in arms))

    def check(self, manifest: Manifest) -> None:
        """Refuses names that no arm has."""
        known = {name for arm in manifest.arms for name in (arm.panel, _name(arm))}
        for name in self.only:
            if name not in known:
                panels = {arm.panel for arm in manifest.arms}
                near = known if ":" in name else panels
                raise ConfigError(f"--only is {name!r}, which the study has not; {suggestion(name, near)}")


def _name(arm: Arm) -> str:
    return f"{arm.panel}:{arm.label}"
