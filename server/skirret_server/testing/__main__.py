"""`python -m skirret_server.testing serve MODEL --attention-backend null`: no model runs."""

from __future__ import annotations

import sys

from skirret_api.launch import from_flags
from skirret_server.serve import serve
from skirret_server.testing import null

USAGE = "usage: python -m skirret_server.testing serve MODEL --attention-backend null [flags]"


def main() -> int:
    flags = sys.argv[2:]
    if sys.argv[1:2] != ["serve"] or "--attention-backend" not in flags:
        print(USAGE, file=sys.stderr)
        return 2
    at = flags.index("--attention-backend")
    if flags[at + 1 : at + 2] != ["null"]:
        print(USAGE, file=sys.stderr)
        return 2
    return serve(from_flags(flags[:at] + flags[at + 2 :]), null.load)


if __name__ == "__main__":
    sys.exit(main())
