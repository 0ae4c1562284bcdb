"""A server for notebooks, by the names that SGLang's documentation uses for its own."""

from __future__ import annotations

import shlex
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

# SGLang's launch command and ours take the same flags.
_THEIRS = ["python", "-m", "sglang.launch_server"]


def execute_shell_command(command: str) -> subprocess.Popen[bytes]:
    """Starts `python -m skirret_server serve …`; SGLang's launch command is understood as that."""
    words = shlex.split(command.replace("\\\n", " "))
    if words[:3] == _THEIRS:
        words[:3] = [sys.executable, "-m", "skirret_server", "serve"]
    return subprocess.Popen(words)


def wait_for_server(url: str, timeout: float = 300) -> None:
    """Returns when the server lists its model; raises TimeoutError."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{url}/v1/models", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise TimeoutError(f"no server answered at {url} within {timeout:.0f} s")


def terminate_process(process: subprocess.Popen[bytes]) -> None:
    """Lets the server drain and end; ends it the hard way after a minute."""
    process.terminate()
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
