"""Headers and routes between our own processes; clients can set none of them.

The gateway drops every inbound header that begins with PREFIX and sets its own; a server honours
them only beside the right token.
"""

import json

PREFIX = "x-skirret-"
TOKEN = "x-skirret-token"
LANE = "x-skirret-lane"
SERVED_NAME = "x-skirret-served-name"
OWNER = "x-skirret-owner"
BLOCKS = "x-skirret-blocks"
DEADLINE = "x-skirret-deadline"  # of the batch, in seconds since the epoch
PRIORITY = "x-skirret-priority"  # of the batch, among those of its namespace
GROUP = "x-skirret-group"  # lines of one group begin alike: they go to one server

# Answers of a server that was asked with the token.
LOAD = "x-skirret-load"  # running,waiting,kv (kv: share of the cache in use, 0..1)
USAGE = "x-skirret-usage"  # prompt,cached,completion (tokens)
DRAINING = "x-skirret-draining"  # "1": refused before any byte; safe to try elsewhere

# Routing by what servers have cached. The gateway hashes a prompt's raw bytes in chained blocks and
# sends the hashes (16 hexadecimal digits each, joined by commas) in BLOCKS. The server ties each to
# a depth in its cache and tells by GET CACHE_EVENTS which it has come to have and which it lost:
#   ?epoch=…&after=N&wait=SECONDS  →  {"epoch", "sequence", "full", "stored": […], "removed": […]}
# `epoch` is the server's own word for this life of its process. With another one, or an `after`
# that it has forgotten, or none, the answer is all it has (`full`), at once. Else it waits up to
# `wait` seconds for news and tells all since `after`; no block is in both lists. Asked with the
# token alone.
CACHE_EVENTS = "/internal/cache-events"
BLOCK_BYTES = 512
MAX_BLOCKS = 64

INTERACTIVE = "interactive"
BATCH = "batch"

SERVER_PORT = 30000
GATEWAY_PORT = 8080
OPERATOR_PORT = 8081

GATEWAY_SERVICE = "skirret-gateway"  # whose EndpointSlices tell gateways of each other

# Where the chart mounts secrets, and the files in them.
TENANTS_DIR = "/etc/skirret/tenants"  # gateway, operator: <namespace>.store.json, <namespace>.token
TENANT_DIR = "/etc/skirret/tenant"  # worker: store.json, token; server: token alone
NOTIFY_DIR = "/etc/skirret/notify"  # worker: key, of the Secret that a BatchJob's `notify` names
URIS_DIR = "/etc/skirret/uris"  # worker: store.json, of a BatchJob's `storeSecretRef`
TENANT_SECRET = "skirret-tenant"  # the Secret of one namespace, with keys store.json and token

# The last line of a process that gives up: FATAL + {"reason": CamelCase, "message": text}.
# Kubernetes carries it to the pod's status (terminationMessagePolicy), the operator to the CR's.
FATAL = "skirret-fatal: "


def fatal(reason: str, message: str) -> str:
    """That line."""
    return FATAL + json.dumps({"reason": reason, "message": message})
