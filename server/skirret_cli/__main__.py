"""Runs `python -m skirret_cli`."""

from skirret_cli.command import main

raise SystemExit(main())
