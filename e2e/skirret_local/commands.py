"""Runs other programs to their end, with an error that holds what they said."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from skirret_local.errors import LocalError

# Debian keeps nft, ip and runc where root's PATH may not look. Nothing else is handed on: a proxy
# of the environment would swallow the cluster's own addresses.
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENVIRONMENT: Mapping[str, str] = {"PATH": PATH, "HOME": str(Path.home()), "LANG": "C.UTF-8"}


def find(program: str) -> str | None:
    return shutil.which(program, path=PATH)


def output(
    *command: str | Path,
    text: str | None = None,
    cwd: Path | None = None,
    environment: Mapping[str, str] = ENVIRONMENT,
) -> str:
    """The command's standard output; raises LocalError with its standard error."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words, input=text, cwd=cwd, env=dict(environment), capture_output=True, text=True
        )
    except FileNotFoundError as error:
        raise LocalError(f"{words[0]} is missing: run python -m skirret_local prepare") from error
    if done.returncode:
        raise _failed(words, done.returncode, done.stderr or done.stdout)
    return done.stdout


def lines(
    *command: str | Path, cwd: Path | None = None, environment: Mapping[str, str] | None = None
) -> Iterator[str]:
    """The lines the command prints, as they come; raises LocalError at its end if it failed."""
    words = [str(word) for word in command]
    said: list[str] = []
    with subprocess.Popen(
        words,
        cwd=cwd,
        env=dict(os.environ if environment is None else environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                said.append(line)
                yield line.rstrip("\n")
        except BaseException:
            process.terminate()
            raise
    if process.returncode:
        raise _failed(words, process.returncode, "".join(said))


def _failed(words: list[str], code: int, said: str) -> LocalError:
    end = "\n".join(said.strip().splitlines()[-20:])
    return LocalError(f"{' '.join(words[:4])} … failed (exit {code}):\n{end}")
