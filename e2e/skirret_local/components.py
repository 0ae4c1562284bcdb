"""Every process of the cluster: its command, its files, and how one knows that it is up."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from skirret_local import certificates, configuration
from skirret_local.layout import Layout
from skirret_local.network import (
    API_PORT,
    ETCD_PEER_URL,
    ETCD_URL,
    HOST,
    S3_URL,
    SERVICES,
    STORE_FILER_PORT,
    STORE_MASTER_PORT,
    STORE_S3_PORT,
    STORE_VOLUME_PORT,
    Node,
)
from skirret_local.processes import Component

MASTER = f"127.0.0.1:{STORE_MASTER_PORT}"


@dataclass(frozen=True, slots=True)
class Programs:
    """Where the programs are; `cluster` is every component of Kubernetes and CoreDNS in one."""

    cluster: Path
    helm: Path
    kubectl: Path
    etcd: Path
    weed: Path
    containerd: Path
    cni: Path


def etcd(layout: Layout, programs: Programs) -> Component:
    return Component(
        name="etcd",
        command=(
            str(programs.etcd),
            f"--data-dir={layout.state / 'etcd'}",
            "--unsafe-no-fsync",  # a cluster doesn't outlive its machine's boot
            f"--listen-client-urls={ETCD_URL}",
            f"--advertise-client-urls={ETCD_URL}",
            f"--listen-peer-urls={ETCD_PEER_URL}",
            f"--initial-advertise-peer-urls={ETCD_PEER_URL}",
            f"--initial-cluster=default={ETCD_PEER_URL}",
            "--log-level=warn",
        ),
        health=f"{ETCD_URL}/health",
    )


def store(layout: Layout, programs: Programs, access_key: str, secret_key: str) -> Component:
    folder = layout.state / "store"
    config = folder / "s3.json"
    return Component(
        name="store",
        command=(
            *(str(programs.weed), "-logtostderr=true", "server"),
            *(f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
            f"-master.port={STORE_MASTER_PORT}",
            "-master.telemetry=false",
            *("-master.volumeSizeLimitMB=1024", "-master.electionTimeout=1s"),
            *(f"-volume.port={STORE_VOLUME_PORT}", "-volume.max=0", "-volume.preStopSeconds=0"),
            *(f"-filer.port={STORE_FILER_PORT}", f"-filer.localSocket={folder / 'filer.sock'}"),
            *("-s3", f"-s3.config={config}", f"-s3.localSocket={folder / 's3.sock'}"),
            *(f"-s3.ip.bind={HOST}", f"-s3.port={STORE_S3_PORT}"),
            *("-s3.port.iceberg=0", "-s3.port.lance=0"),
        ),
        health=f"{S3_URL}/healthz",
        files={config: configuration.store(access_key, secret_key)},
    )


def api_server(layout: Layout, programs: Programs) -> Component:
    pki = layout.certificates
    policy = layout.state / "audit-policy.json"
    return Component(
        name="kube-apiserver",
        command=(
            *(str(programs.cluster), "kube-apiserver"),
            *(f"--bind-address={HOST}", f"--advertise-address={HOST}"),
            f"--secure-port={API_PORT}",
            f"--etcd-servers={ETCD_URL}",
            f"--service-cluster-ip-range={SERVICES}",
            *("--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction"),
            f"--client-ca-file={pki / 'ca.crt'}",
            f"--tls-cert-file={pki / 'kube-apiserver.crt'}",
            f"--tls-private-key-file={pki / 'kube-apiserver.key'}",
            *_service_accounts(pki),
            f"--kubelet-certificate-authority={pki / 'ca.crt'}",
            f"--kubelet-client-certificate={pki / f'{certificates.ADMIN}.crt'}",
            f"--kubelet-client-key={pki / f'{certificates.ADMIN}.key'}",
            # The machine can't resolve the nodes' names.
            "--kubelet-preferred-address-types=InternalIP",
            f"--audit-policy-file={policy}",
            *(f"--audit-log-path={layout.audit_log}", "--audit-log-maxsize=512"),
        ),
        health=f"https://{HOST}:{API_PORT}/readyz",
        files={policy: configuration.audit_policy()},
    )


def _service_accounts(pki: Path) -> tuple[str, ...]:
    return (
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={pki / 'accounts.pub'}",
        f"--service-account-signing-key-file={pki / 'accounts.key'}",
    )


def controller_manager(layout: Layout, programs: Programs) -> Component:
    pki = layout.certificates
    return _controller(
        layout,
        programs,
        certificates.CONTROLLER_MANAGER,
        10257,
        "--use-service-account-credentials",
        f"--root-ca-file={pki / 'ca.crt'}",
        f"--service-account-private-key-file={pki / 'accounts.key'}",
        f"--flex-volume-plugin-dir={layout.state / 'volume-plugins'}",
    )


def scheduler(layout: Layout, programs: Programs) -> Component:
    return _controller(layout, programs, certificates.SCHEDULER, 10259)


def _controller(layout: Layout, programs: Programs, name: str, port: int, *flags: str) -> Component:
    config = layout.state / f"{name}.kubeconfig"
    return Component(
        name=name,
        command=(
            *(str(programs.cluster), name),
            f"--kubeconfig={config}",
            f"--authentication-kubeconfig={config}",
            f"--authorization-kubeconfig={config}",
            *(f"--bind-address={HOST}", f"--secure-port={port}"),
            "--leader-elect=false",
            *flags,
        ),
        health=f"https://{HOST}:{port}/healthz",
        files={config: configuration.kubeconfig(layout, name)},
    )


def proxy(layout: Layout, programs: Programs, node: Node) -> Component:
    """One for all nodes, since they share the machine's network."""
    kubeconfig = layout.state / "kube-proxy.kubeconfig"
    config = layout.state / "kube-proxy.json"
    return Component(
        name="kube-proxy",
        command=(str(programs.cluster), "kube-proxy", f"--config={config}"),
        health=f"http://{HOST}:10256/livez",
        files={
            kubeconfig: configuration.kubeconfig(layout, certificates.PROXY),
            config: configuration.kube_proxy(kubeconfig, node),
        },
    )


def dns(layout: Layout, programs: Programs) -> Component:
    kubeconfig = layout.state / "coredns.kubeconfig"
    config = layout.state / "Corefile"
    return Component(
        name="coredns",
        command=(str(programs.cluster), "coredns", "-conf", str(config)),
        health=f"http://{HOST}:8181/ready",
        files={
            kubeconfig: configuration.kubeconfig(layout, certificates.DNS),
            config: configuration.corefile(kubeconfig),
        },
    )


def containerd(layout: Layout, programs: Programs, node: Node) -> Component:
    folder = layout.node(node.name)
    config = folder / "containerd.toml"
    return Component(
        name=f"{node.name}-containerd",
        command=(str(programs.containerd), f"--config={config}"),
        health=str(layout.containerd_socket(node.name)),
        cgroup=f"{node.name}/runtime",
        files={
            config: configuration.containerd(layout, node, str(programs.cni)),
            folder / "cni/skirret.conflist": configuration.cni(layout, node),
        },
    )


def kubelet(layout: Layout, programs: Programs, node: Node) -> Component:
    folder = layout.node(node.name)
    kubeconfig = folder / "kubelet.kubeconfig"
    config = folder / "kubelet.json"
    return Component(
        name=f"{node.name}-kubelet",
        command=(
            *(str(programs.cluster), "kubelet"),
            f"--config={config}",
            f"--kubeconfig={kubeconfig}",
            *(f"--root-dir={folder / 'kubelet'}", f"--cert-dir={folder / 'kubelet/pki'}"),
            *(f"--hostname-override={node.name}", f"--node-ip={node.address}"),
        ),
        health=f"http://{node.address}:10248/healthz",
        cgroup=f"{node.name}/runtime",
        files={
            kubeconfig: configuration.kubeconfig(layout, node.name),
            config: configuration.kubelet(layout, node),
        },
    )
