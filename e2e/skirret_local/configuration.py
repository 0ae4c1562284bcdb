"""The configuration files of the cluster's programs, as text: everything JSON can say, in JSON."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from skirret_local.layout import Layout
from skirret_local.network import (
    API_URL,
    DNS_PORT,
    DNS_SERVICE,
    HOST,
    PODS,
    Node,
)

DOMAIN = "cluster.local"
PAUSE_IMAGE = "localhost/skirret-pause:1"
CONTEXT = "skirret-local"


def kubeconfig(layout: Layout, user: str) -> str:
    """Whole in itself, so that it can be copied elsewhere."""

    def data(name: str) -> str:
        return base64.b64encode((layout.certificates / name).read_bytes()).decode()

    return _json(
        apiVersion="v1",
        kind="Config",
        clusters=[
            {
                "name": CONTEXT,
                "cluster": {"server": API_URL, "certificate-authority-data": data("ca.crt")},
            }
        ],
        users=[
            {
                "name": user,
                "user": {
                    "client-certificate-data": data(f"{user}.crt"),
                    "client-key-data": data(f"{user}.key"),
                },
            }
        ],
        contexts=[{"name": CONTEXT, "context": {"cluster": CONTEXT, "user": user}}],
        **{"current-context": CONTEXT},
    )


def audit_policy() -> str:
    """Who did what to which object; never its content, which may be a secret."""
    return _json(
        apiVersion="audit.k8s.io/v1",
        kind="Policy",
        omitStages=["RequestReceived"],
        rules=[{"level": "Metadata"}],
    )


def kubelet(layout: Layout, node: Node) -> str:
    folder = layout.node(node.name)
    return _json(
        apiVersion="kubelet.config.k8s.io/v1beta1",
        kind="KubeletConfiguration",
        address=node.address,
        healthzBindAddress=node.address,
        authentication={
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(layout.certificates / "ca.crt")},
        },
        authorization={"mode": "Webhook"},
        tlsCertFile=str(layout.certificates / f"{node.name}.crt"),
        tlsPrivateKeyFile=str(layout.certificates / f"{node.name}.key"),
        containerRuntimeEndpoint=f"unix://{layout.containerd_socket(node.name)}",
        cgroupDriver="cgroupfs",
        cgroupRoot=f"/skirret/{node.name}/pods",
        failCgroupV1=False,
        failSwapOn=False,
        makeIPTablesUtilChains=False,  # kube-proxy uses nftables
        podLogsDir=str(folder / "logs"),
        volumePluginDir=str(folder / "volume-plugins"),
        clusterDNS=[DNS_SERVICE],
        clusterDomain=DOMAIN,
        resolvConf="",
        # Disk and memory are the machine's own: pods aren't ended over what others fill.
        evictionHard={
            "nodefs.available": "1%",
            "imagefs.available": "1%",
            "memory.available": "100Mi",
        },
        imageGCHighThresholdPercent=100,  # images come by import: one removed is lost
        # As soon as is sensible: tests wait for all of these.
        nodeStatusUpdateFrequency="2s",
        nodeStatusReportFrequency="5s",
        syncFrequency="5s",
        crashLoopBackOff={"maxContainerRestartPeriod": "10s"},
        eventRecordQPS=0,
        oomScoreAdj=0,
    )


def kube_proxy(kubeconfig: Path, node: Node) -> str:
    return _json(
        apiVersion="kubeproxy.config.k8s.io/v1alpha1",
        kind="KubeProxyConfiguration",
        mode="nftables",
        nftables={"minSyncPeriod": "100ms"},
        clusterCIDR=PODS,
        hostnameOverride=node.name,
        healthzBindAddress=f"{HOST}:10256",
        metricsBindAddress=f"{HOST}:10249",
        clientConnection={"kubeconfig": str(kubeconfig)},
        conntrack={"maxPerCore": 0, "min": 0},
        oomScoreAdj=0,
    )


def corefile(kubeconfig: Path) -> str:
    """Names of the cluster are answered, all others denied: there is nothing above."""
    return f"""\
{DOMAIN}:{DNS_PORT} in-addr.arpa:{DNS_PORT} ip6.arpa:{DNS_PORT} {{
    bind {HOST}
    errors
    ready {HOST}:8181
    kubernetes {DOMAIN} in-addr.arpa ip6.arpa {{
        kubeconfig {kubeconfig}
        ttl 5
    }}
    cache 5
}}
.:{DNS_PORT} {{
    bind {HOST}
    errors
    template ANY ANY . {{
        rcode NXDOMAIN
    }}
}}
"""


def containerd(layout: Layout, node: Node, cni_programs: str) -> str:
    folder = layout.node(node.name)
    text = {
        "root": folder / "containerd/root",
        "state": folder / "containerd/state",
        "socket": layout.containerd_socket(node.name),
        "opt": folder / "containerd/opt",
        "runc": folder / "runc",
        "cni": folder / "cni",
    }
    path = {name: json.dumps(str(value)) for name, value in text.items()}
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    return f"""\
version = 2
root = {path["root"]}
state = {path["state"]}
disabled_plugins = ["io.containerd.internal.v1.tracing", "io.containerd.tracing.processor.v1.otlp"]
[grpc]
  address = {path["socket"]}
[plugins."io.containerd.internal.v1.opt"]
  path = {path["opt"]}
[{cri}]
  sandbox_image = "{PAUSE_IMAGE}"
  netns_mounts_under_state_dir = true
  # Without CAP_SYS_RESOURCE a negative score is refused and no container starts.
  restrict_oom_score_adj = true
  [{cri}.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [{cri}.containerd.runtimes.runc.options]
      Root = {path["runc"]}
  [{cri}.cni]
    bin_dir = {json.dumps(cni_programs)}
    conf_dir = {path["cni"]}
"""


def cni(layout: Layout, node: Node) -> str:
    """A link of its own to each pod, routed by the host.

    On a shared bridge the answer of a pod reached through a Service would go to the asking pod
    directly, past the translation of its address.
    """
    return _json(
        cniVersion="0.4.0",
        name=f"skirret-{node.name}",
        plugins=[
            {
                "type": "ptp",
                "ipam": {
                    "type": "host-local",
                    "dataDir": str(layout.node(node.name) / "addresses"),
                    "ranges": [[{"subnet": node.pods}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            }
        ],
    )


def store(access_key: str, secret_key: str) -> str:
    return _json(
        identities=[
            {
                "name": "skirret",
                "credentials": [{"accessKey": access_key, "secretKey": secret_key}],
                "actions": ["Admin", "Read", "List", "Tagging", "Write"],
            }
        ]
    )


def _json(**content: Any) -> str:
    return json.dumps(content, indent=1) + "\n"
