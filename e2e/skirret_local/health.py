"""Asks a component whether it is up."""

from __future__ import annotations

import socket
import ssl
import urllib.error
import urllib.request


def answers(where: str) -> bool:
    """Whether the URL answers 2xx, or something listens on the Unix socket."""
    return _listens(where) if where.startswith("/") else _is_ok(where)


def _is_ok(url: str) -> bool:
    # Only addresses of this machine are asked: nothing to prove, and no proxy to go through.
    unverified = ssl.create_default_context()
    unverified.check_hostname = False
    unverified.verify_mode = ssl.CERT_NONE
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=unverified)
    )
    try:
        with opener.open(url, timeout=2):
            return True
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        return False


def _listens(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(path)
        except (FileNotFoundError, ConnectionError):
            return False
        return True
