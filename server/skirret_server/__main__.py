"""`python -m skirret_server serve MODEL` is one model behind the OpenAI API; `fetch` brings it."""

from __future__ import annotations

import sys

USAGE = "usage: python -m skirret_server serve MODEL [flags]; `serve --help` lists the flags"


def main() -> int:
    if sys.argv[1:2] == ["fetch"]:
        from skirret_server import fetch

        return fetch.main(sys.argv[2:])
    if sys.argv[1:2] != ["serve"]:
        print(USAGE, file=sys.stderr)
        return 2
    # Below the check: the command line is refused before anything large is imported.
    from skirret_api.launch import from_flags
    from skirret_server.serve import serve

    return serve(from_flags(sys.argv[2:]))


if __name__ == "__main__":
    sys.exit(main())
