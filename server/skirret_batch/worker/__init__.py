"""The worker: takes one batch from wherever it is to its end, and may be killed at any instruction.

life      the life of a batch, on one page
source    its input, as one object and then as a local file
run       the lines on their way: asked, retried, committed
pending   which line is next (pure)
pace      how many at once (pure)
shard     who holds which lines, and which results count: leases, fences, manifests
publish   the output and error files, in input order
notify    tells the end to a URL
"""

from skirret_batch.worker.life import Worker
from skirret_batch.worker.settings import WorkerSettings

__all__ = ["Worker", "WorkerSettings"]
