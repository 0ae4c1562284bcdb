"""The addresses of the local Kubernetes; all of them exist on this machine only."""

from __future__ import annotations

from dataclasses import dataclass

from skirret_local.errors import LocalError

# A bridge without ports, since not every kernel has the dummy link type. Everything pods may reach
# listens on its addresses; what they may not, on the loopback.
BRIDGE = "skirret0"
HOST = "10.201.0.1"
PODS = "10.202.0.0/16"
SERVICES = "10.203.0.0/16"
KUBERNETES_SERVICE = "10.203.0.1"
DNS_SERVICE = "10.203.0.10"

API_PORT = 6443
DNS_PORT = 1053
API_URL = f"https://{HOST}:{API_PORT}"

# SeaweedFS asks nobody's name but at its S3 port, so all but that stays on the loopback. Each of
# its servers has a second port, for gRPC.
STORE_MASTER_PORT = 19333
STORE_VOLUME_PORT = 18080
STORE_FILER_PORT = 18888
STORE_S3_PORT = 18333
STORE_PORTS = (STORE_MASTER_PORT, STORE_VOLUME_PORT, STORE_FILER_PORT, STORE_S3_PORT)
STORE_GRPC = 10000  # from the first port to the second
S3_URL = f"http://{HOST}:{STORE_S3_PORT}"
S3_SERVICE_PORT = 8333
S3_CLUSTER_URL = f"http://s3.storage.svc:{S3_SERVICE_PORT}"

ETCD_URL = "http://127.0.0.1:12379"
ETCD_PEER_URL = "http://127.0.0.1:12380"

MOST_NODES = 9


@dataclass(frozen=True, slots=True, order=True)
class Node:
    """One kubelet with a containerd of its own; `number` starts at 1."""

    number: int

    @property
    def name(self) -> str:
        return f"node{self.number}"

    @property
    def address(self) -> str:
        return f"10.201.0.{self.number}"

    @property
    def pods(self) -> str:
        return f"10.202.{self.number}.0/24"


def first_nodes(count: int) -> list[Node]:
    if not 1 <= count <= MOST_NODES:
        raise LocalError(f"{count} nodes asked for: the local Kubernetes has 1 to {MOST_NODES}")
    return [Node(number) for number in range(1, count + 1)]
