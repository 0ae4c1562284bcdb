"""Every limit and every wait of the worker."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Times are seconds, sizes bytes."""

    max_lines: int = 50_000
    max_bytes: int = 200_000_000  # of an input that comes by URI, decompressed
    max_enqueued_tokens: int | None = None  # of prompts of the store's live batches

    concurrency: int = 128  # requests in flight at once, at most
    tries: int = 5  # of a line whose answer is a server's fault
    retry_first: float = 0.5
    retry_longest: float = 30.0
    rest_first: float = 0.5  # when nobody answers at all
    rest_longest: float = 10.0
    answer_timeout: float = 3600.0

    shard_lines: int = 2000
    shard_tokens: int = 2_000_000
    flush_bytes: int = 4 << 20
    flush_after: float = 3.0  # so that a crash loses no more than five seconds of work
    most_buffered: int = 32 << 20  # of results not yet committed, before we stop asking
    renew_after: float = 10.0
    stale_after: float = 30.0  # of no sign from a shard's holder, before another takes it
    poll: float = 0.5  # between looks at the record, and at shards that others hold
    report_after: float = 1.0  # between updates of the record's counts
    cancel_drain: float = 1.0
    stop_drain: float = 5.0  # after SIGTERM, before requests in flight are dropped

    template_wait: float = 5.0  # for a server to say how it makes prompts of chats
    part_size: int = 16 << 20

    def but(self, changes: Iterable[str]) -> WorkerSettings:
        """These with some `name=value`. Raises ValueError, naming the ones there are."""
        kinds = {each.name: type(getattr(self, each.name)) for each in fields(self)}
        changed: dict[str, float] = {}
        for change in changes:
            name, _, value = change.partition("=")
            try:
                changed[name] = kinds[name](value)
            except KeyError:
                raise ValueError(f"no setting is called {name!r}; {', '.join(kinds)} are") from None
            except ValueError:
                raise ValueError(f"{change}: {name} is a number") from None
        return replace(self, **changed)  # type: ignore[arg-type]
