"""The parser's tables as documentation: `python -m skirret_server.api.reference [--check]`.

Rewrites what stands between `<!-- parser: NAME -->` and `<!-- end -->`; the rest is hand-written.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from skirret_server.api.parameters import (
    ABORT,
    CHAT,
    COMPLETION,
    DETOKENIZE,
    GENERATE,
    GENERATE_SAMPLING,
    RESPONSES,
    TOKENIZE,
    Parameter,
)
from skirret_server.api.shapes import Unsupported
from skirret_server.grammar import keywords

PAGES = ("docs/openai-compatibility.md", "docs/structured-output.md", "README.md")

_TABLES = {
    "chat": CHAT,
    "completions": COMPLETION,
    "responses": RESPONSES,
    "generate": GENERATE,
    "sampling_params": GENERATE_SAMPLING,
    "tokenize": TOKENIZE,
    "detokenize": DETOKENIZE,
    "abort_request": ABORT,
}
_ROUTES = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETION,
    "/v1/responses": RESPONSES,
    "/generate": {**GENERATE, **GENERATE_SAMPLING},
}
_BLOCK = re.compile(r"(<!-- parser: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def fresh(page: str) -> str:
    """The page with every block written anew. Raises KeyError for a block nobody knows."""
    return _BLOCK.sub(lambda found: f"{found[1]}{_block(found[2])}{found[3]}", page)


def _block(name: str) -> str:
    if name == "keywords":
        return keywords.table()
    return _summary() if name == "summary" else _table(_TABLES[name])


def _table(table: Mapping[str, Parameter]) -> str:
    rows = [
        f"| `{name}` | {one.shape} | {_default(one)} | {_effect(one)} |"
        for name, one in table.items()
    ]
    head = ["| parameter | value | default | what becomes of it |", "|---|---|---|---|"]
    return "\n".join([*head, *rows, ""])


def _default(one: Parameter) -> str:
    if one.required:
        return "required"
    return "" if one.default is None else f"`{json.dumps(one.default)}`"


def _effect(one: Parameter) -> str:
    if _is_refused(one):
        return "**400** `unsupported_parameter`"
    return one.note or "honoured"


def _summary() -> str:
    head = ["| | honoured | accepted, without effect | refused by name |", "|---|---|---|---|"]
    rows = [
        f"| `{route}` | {_names(table, 'honoured')} | {_names(table, 'ignored')} | "
        f"{_names(table, 'refused')} |"
        for route, table in _ROUTES.items()
    ]
    return "\n".join([*head, *rows, ""])


def _names(table: Mapping[str, Parameter], wanted: str) -> str:
    found = [
        f"`{name}`"
        for name, one in table.items()
        if ("refused" if _is_refused(one) else one.effect) == wanted
    ]
    return ", ".join(found)


def _is_refused(one: Parameter) -> bool:
    return isinstance(one.shape, Unsupported)


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the parser's tables into the documents.")
    parser.add_argument("--check", action="store_true", help="fail if one is stale")
    check = parser.parse_args().check
    stale = False
    for path in map(Path, PAGES):
        old = path.read_text(encoding="utf-8")
        new = fresh(old)
        stale |= old != new
        if not check:
            path.write_text(new, encoding="utf-8")
    if check and stale:
        print("the parser's tables in the documents are stale: run `make generate`")
    return int(check and stale)


if __name__ == "__main__":
    sys.exit(main())
