"""buildah, with its storage in our cache and no registry to ask."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from skirret_local import commands
from skirret_local.layout import ROOT

DOCKER = ROOT / "docker"
MANY = 100  # images, of which each build leaves about 7 as a cache for the next


@dataclass(frozen=True, slots=True)
class Buildah:
    folder: Path

    def __call__(self, *arguments: str | Path) -> str:
        return commands.output(*self._command(*arguments))

    def build(self, name: str, dockerfile: str, context: Path, *options: str) -> Iterator[str]:
        bud = ("bud", "--isolation", "chroot", "--pull-never", "--layers", "--tag", name)
        return commands.lines(
            *self._command(*bud, "--file", DOCKER / dockerfile, *options, context),
            environment=commands.ENVIRONMENT,
        )

    def id(self, name: str) -> str | None:
        """The image's id; None if there is none of that name."""
        listed = self("images", "--filter", f"reference={name}", "--quiet", "--no-trunc")
        return listed.split()[0] if listed else None

    def tidy(self) -> None:
        """Removes what failed builds left and, now and then, what no present image is built on."""
        self("rm", "--all")
        if len(self("images", "--all", "--quiet").split()) > MANY:
            self("rmi", "--prune")

    def _command(self, *arguments: str | Path) -> list[str | Path]:
        storage = ("--root", self.folder / "storage", "--runroot", self.folder / "run")
        return ["buildah", *storage, "--storage-driver", "overlay", *arguments]
