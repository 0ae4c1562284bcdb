"""Headers and routes between our own processes; clients can set none of them.

The gateway drops every inbound header that begins with PREFIX and sets its own; a server honours
them only beside the right token.
"""

PREFIX = "x-skirret-"
TOKEN = "x-skirret-token"
LANE = "x-skirret-lane"
SERVED_NAME = "x-skirret-served-name"
OWNER = "x-skirret-owner"
BLOCKS = "x-skirret-blocks"
DEADLINE = "x-skirret-deadline"

# Answers of a server that was asked with the token.
LOAD = "x-skirret-load"  # running,waiting,kv (kv: share of the cache in use, 0..1)
USAGE = "x-skirret-usage"  # prompt,cached,completion (tokens)
DRAINING = "x-skirret-draining"  # "1": refused before any byte; safe to try elsewhere

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
