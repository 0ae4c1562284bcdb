"""`skirret batch`: which command, on which batch or file, told in which form."""

from __future__ import annotations

import argparse
import gzip
import json
import os
import signal
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from skirret_api.openai import BatchError
from skirret_cli.batches import lines
from skirret_cli.batches.api import Api, ApiError, Away, Refused
from skirret_cli.batches.follow import Screen, follow
from skirret_cli.batches.words import (
    Json,
    details,
    ending,
    fault,
    faults,
    has_ended,
    is_whole,
    table,
    valid,
)

FAILED, UNANSWERED, INTERRUPTED = 1, 3, 130
EXIT_CODES = f"""\
exit status:
  0    done; with --wait: the batch completed and every line was answered
  {FAILED}    refused, or nobody answers; the last line says why. validate: FILE has errors
  2    the command line is wrong
  {UNANSWERED}    with --wait: the batch ended, but some lines failed or were not run
  {INTERRUPTED}  interrupted; a batch that was submitted goes on

The server is --url or OPENAI_BASE_URL, {{url}} without them; its key OPENAI_API_KEY."""

_URL = "http://127.0.0.1:30000/v1"
_GZIP = ".gz"
_MOST_LINES = 50_000
_MOST_PAIRS = 16  # of metadata
_NO_LIMIT = 2**31  # submitting, the server's own limit counts


class Unusable(Exception):
    """What was given can't be used; the message is for the user."""


@dataclass(frozen=True, slots=True)
class Session:
    """What the commands work with."""

    api: Api
    out: IO[str]
    err: IO[str]
    clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep

    @property
    def screen(self) -> Screen:
        return Screen(self.err, self.clock)

    def say(self, text: str) -> None:
        """What is for people, and in nobody's way in a pipe."""
        print(text, file=self.err)

    def give(self, text: str) -> None:
        print(text, file=self.out)


def run(options: argparse.Namespace) -> int:
    """Carries out what `add_to` parsed; returns the exit status."""
    url = options.url or os.environ.get("OPENAI_BASE_URL") or _URL
    if not url.startswith(("http://", "https://")):
        url = f"http://{url}"
    api = Api(url, os.environ.get("OPENAI_API_KEY"), time.sleep)
    try:
        status = carry_out(options, Session(api, sys.stdout, sys.stderr))
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read it has enough, as in `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return status


def carry_out(options: argparse.Namespace, session: Session) -> int:
    command: Callable[[argparse.Namespace, Session], int] = options.carry_out
    try:
        return command(options, session)
    except BrokenPipeError:
        raise
    except (ApiError, Unusable, OSError) as error:
        session.screen.clear()
        session.say(f"skirret: {_words(error)}")
        return FAILED
    except KeyboardInterrupt:
        session.screen.clear()
        return INTERRUPTED


def _submit(options: argparse.Namespace, session: Session) -> int:
    """check FILE, upload it and start a batch of it; prints the batch's id"""
    with _requests(_opened(options.file), options.model) as file:
        examined = lines.examine(file, _NO_LIMIT)
        if examined.errors:
            return _told_errors(options, session, examined)
        wanted = {
            "endpoint": examined.endpoint,
            "completion_window": options.window,
            "metadata": dict(options.metadata) or None,
        }
        return _start(options, session, file, options.file.name.removesuffix(_GZIP), wanted)


def _validate(options: argparse.Namespace, session: Session) -> int:
    """check FILE and list everything wrong with it, by line; nothing is run"""
    with _requests(_opened(options.file), options.model) as file:
        examined = lines.examine(file, options.max_lines)
        if not options.local and not examined.errors:
            try:
                examined = _examined_by_server(options, session, file, examined)
            except Away as error:
                session.screen.clear()
                session.say(f"skirret: {error}: checked on this machine alone, models are not")
    if options.json or examined.errors:
        return _told_errors(options, session, examined)
    session.give(f"{options.file}: {valid(examined)}")
    return 0


def _examined_by_server(
    options: argparse.Namespace, session: Session, file: IO[bytes], examined: lines.Examined
) -> lines.Examined:
    """By a dry run: it knows the models and how fast they were. Leaves nothing there."""
    uploaded = _uploaded(session, file, options.file.name.removesuffix(_GZIP))
    try:
        said = session.api.dry_run(
            {
                "input_file_id": uploaded["id"],
                "endpoint": examined.endpoint,
                "completion_window": "24h",
            }
        )
    finally:
        session.api.delete(uploaded["id"])
    errors = (said["errors"] or {"data": []})["data"]
    return replace(
        examined,
        tokens=said["usage"]["input_tokens"],
        is_estimated=said["estimated"],
        seconds=said["estimated_seconds"],
        errors=tuple(BatchError.model_validate(error) for error in errors),
    )


def _list(options: argparse.Namespace, session: Session) -> int:
    """list batches, newest first"""
    found = list(session.api.batches(options.limit))
    if options.json:
        session.give(json.dumps(found))
    elif found:
        session.give(table(found, session.clock()))
    else:
        session.say(f"no batches at {session.api.url}")
    return 0


def _show(options: argparse.Namespace, session: Session) -> int:
    """show batch ID; with --wait, its progress until it has ended"""
    batch = session.api.batch(options.id)
    if options.wait:
        return _awaited(options, session, batch)
    session.give(json.dumps(batch) if options.json else details(batch, session.clock()))
    return 0


def _cancel(options: argparse.Namespace, session: Session) -> int:
    """cancel batch ID; what is done already is kept"""
    batch = session.api.cancel(options.id)
    if options.wait:
        return _awaited(options, session, batch)
    session.give(json.dumps(batch) if options.json else f"{batch['id']} is {batch['status']}")
    return 0


def _results(options: argparse.Namespace, session: Session) -> int:
    """print the answers of batch ID, or what went wrong with --errors, one JSON object a line"""
    batch = session.api.batch(options.id)
    if not has_ended(batch):
        raise Unusable(
            f"{batch['id']} is {batch['status']}; it has results when it has ended "
            f"(skirret batch show {batch['id']} --wait)"
        )
    file_id = batch["error_file_id" if options.errors else "output_file_id"]
    if file_id is None:
        raise Unusable("\n".join([_without_file(batch, options.errors), *faults(batch)]))
    pieces = session.api.content(file_id)
    if options.output is None:
        for piece in pieces:
            session.out.write(piece.decode())  # its lines are ASCII
        return 0
    # Under its name only when it is whole.
    part = options.output.with_name(options.output.name + ".part")
    with part.open("wb") as target:
        target.writelines(pieces)
    part.replace(options.output)
    size = options.output.stat().st_size
    if options.json:
        session.give(json.dumps({"file": str(options.output), "bytes": size}))
    else:
        session.say(f"{options.output}: {size:,} bytes")
    return 0


def _retry(options: argparse.Namespace, session: Session) -> int:
    """start a batch of the lines of batch ID that failed, expired or were cancelled"""
    batch = session.api.batch(options.id)
    if not has_ended(batch):
        raise Unusable(f"{batch['id']} is {batch['status']}; only what has ended is tried again")
    if batch["error_file_id"] is None:
        raise Unusable("\n".join([_without_file(batch, errors=True), *faults(batch)]))
    wanted_ids = lines.custom_ids(session.api.content(batch["error_file_id"]))
    with _input_of(batch, options.input, session.api) as given:
        chosen, found = lines.chosen(given, wanted_ids)
    with _requests(chosen, options.model) as file:
        if missing := sorted(wanted_ids - found):
            raise Unusable(
                f"{len(missing):,} of {len(wanted_ids):,} lines are not in the input, "
                f"{missing[0]!r} is the first: give the whole file with --input"
            )
        metadata = batch.get("metadata") or {}
        if len(metadata) < _MOST_PAIRS:
            metadata = {**metadata, "retry_of": batch["id"]}
        wanted = {
            "endpoint": batch["endpoint"],
            "completion_window": options.window or batch["completion_window"],
            "metadata": metadata,
        }
        session.say(f"{len(found):,} lines of {batch['id']} are tried again")
        return _start(options, session, file, f"{batch['id']}_retry.jsonl", wanted)


def _start(
    options: argparse.Namespace, session: Session, file: IO[bytes], name: str, wanted: Json
) -> int:
    uploaded = _uploaded(session, file, name)
    batch = session.api.create(
        {"input_file_id": uploaded["id"], **{k: v for k, v in wanted.items() if v is not None}}
    )
    if options.wait:
        return _awaited(options, session, batch, is_new=True)
    session.give(json.dumps(batch) if options.json else batch["id"])
    return 0


def _uploaded(session: Session, file: IO[bytes], name: str) -> Json:
    screen, size = session.screen, file.seek(0, 2)
    uploaded = session.api.upload(
        name, file, lambda sent: screen.show(f"uploading  {100 * sent // size}% of {size:,} bytes")
    )
    screen.clear()
    return uploaded


def _awaited(
    options: argparse.Namespace, session: Session, batch: Json, *, is_new: bool = False
) -> int:
    try:
        if is_new:  # in here: whoever reads the id may interrupt at once
            session.say(batch["id"])
        ended = follow(session.api, batch["id"], session.screen, session.clock, session.sleep)
    except KeyboardInterrupt:
        session.screen.clear()
        where = f" --url={options.url}" if options.url else ""
        session.say(
            f"{batch['id']} goes on without you\n"
            f"  to look again: skirret batch show {batch['id']} --wait{where}\n"
            f"  to stop it:    skirret batch cancel {batch['id']}{where}"
        )
        raise
    session.give(json.dumps(ended) if options.json else ending(ended))
    return 0 if is_whole(ended) else UNANSWERED


@contextmanager
def _requests(given: IO[bytes], model: str | None) -> Iterator[IO[bytes]]:
    """The file as it will be uploaded."""
    with given:
        if model is None:
            yield given
            return
        with lines.renamed(given, model) as file:
            yield file


def _input_of(batch: Json, given: Path | None, api: Api) -> IO[bytes]:
    if given is not None:
        return _opened(given)
    source = batch["input_file_id"]
    if "://" in source:
        raise Unusable(f"its input is {source}, which is not in /v1/files: give it with --input")
    try:
        return lines.written(api.content(source))
    except Refused as error:
        raise Unusable(f"its input is gone ({error}): give it with --input") from error


def _opened(path: Path) -> IO[bytes]:
    if path.is_dir():
        raise Unusable(f"{path} is a folder; a batch is one .jsonl file")
    if path.suffix != _GZIP:
        return path.open("rb")
    try:
        return lines.decompressed(path)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise Unusable(f"{path} is no whole gzip file: {error}") from error


def _told_errors(options: argparse.Namespace, session: Session, examined: lines.Examined) -> int:
    errors = [error.model_dump() for error in examined.errors]
    if options.json:
        told = {
            "file": str(options.file),
            "endpoint": examined.endpoint,
            "requests": examined.requests,
            "models": examined.models,
            "prompt_tokens": examined.tokens,
            "estimated": examined.is_estimated,
            "estimated_seconds": examined.seconds,
            "errors": errors,
        }
        session.give(json.dumps(told))
    else:
        for error in errors:
            session.say(f"{options.file}: {fault(error)}")
    return FAILED if errors else 0


def _words(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _without_file(batch: Json, errors: bool) -> str:
    which = "line failed" if errors else "line was answered"
    return f"{batch['id']} is {batch['status']}: no {which}"


_COMMANDS: dict[str, Callable[[argparse.Namespace, Session], int]] = {
    "submit": _submit,
    "ls": _list,
    "show": _show,
    "cancel": _cancel,
    "results": _results,
    "retry": _retry,
    "validate": _validate,
}
_TAKE_FILE = ("submit", "validate")


def add_to(commands: Any) -> None:
    """Adds `batch` and its commands to the subparsers of the command line."""
    words = "submit, follow, cancel and retry batches of /v1/batches"
    parser = commands.add_parser(
        "batch",
        help=words,
        description=words,
        epilog=EXIT_CODES.format(url=_URL),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    inner = parser.add_subparsers(dest="batch_command", required=True, metavar="COMMAND")
    of: dict[str, argparse.ArgumentParser] = {}
    for name, command in _COMMANDS.items():
        each = of[name] = inner.add_parser(
            name,
            help=command.__doc__,
            description=command.__doc__,
            epilog=EXIT_CODES.format(url=_URL),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        each.set_defaults(carry_out=command)
        each.add_argument("--url", help="the server, as https://host/v1")
        help_ = "print JSON; lines are JSON without it" if name == "results" else "print JSON"
        each.add_argument("--json", action="store_true", help=help_)
        if name in _TAKE_FILE:
            each.add_argument(
                "file", metavar="FILE", type=Path, help="requests, one a line; .jsonl or .jsonl.gz"
            )
        elif name != "ls":
            each.add_argument("id", metavar="ID", help="the batch's id")
    for name in ("submit", "retry", "validate"):
        of[name].add_argument("--model", help="ask this model, whatever the lines say")
    for name in ("submit", "retry", "show", "cancel"):
        of[name].add_argument("--wait", action="store_true", help="show progress until the end")
    of["submit"].add_argument(
        "--window", default="24h", help="time it may take: 90s, 30m, 24h, 14d (%(default)s)"
    )
    of["retry"].add_argument("--window", help="time it may take; that of the first by default")
    of["submit"].add_argument(
        "--metadata",
        action="append",
        default=[],
        type=_pair,
        metavar="KEY=VALUE",
        help="shown with the batch; may be given again",
    )
    of["ls"].add_argument("--limit", type=_count, default=20, help="how many (%(default)s)")
    of["results"].add_argument("--errors", action="store_true", help="the lines without an answer")
    of["results"].add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="write them to this file"
    )
    of["retry"].add_argument(
        "--input", type=Path, metavar="FILE", help="the first batch's input, if it was deleted"
    )
    of["validate"].add_argument(
        "--local", action="store_true", help="ask no server: models are not checked then"
    )
    of["validate"].add_argument(
        "--max-lines", type=_count, default=_MOST_LINES, help="the server's limit (%(default)s)"
    )


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


def _count(text: str) -> int:
    with suppress(ValueError):
        if int(text) > 0:
            return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
