"""The cluster's certificates, made by openssl once for each cluster."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from skirret_local import commands
from skirret_local.network import HOST, KUBERNETES_SERVICE, Node

ADMIN = "admin"
CONTROLLER_MANAGER = "kube-controller-manager"
SCHEDULER = "kube-scheduler"
PROXY = "kube-proxy"
DNS = "coredns"

KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc", "-days", "3650")


@dataclass(frozen=True, slots=True)
class Certificate:
    """Who someone is to the API server, or the API server or a kubelet to its clients."""

    name: str
    subject: str
    addresses: tuple[str, ...] = field(default=())


def certificates(nodes: list[Node]) -> list[Certificate]:
    return [
        Certificate(ADMIN, "/O=system:masters/CN=admin"),
        Certificate(CONTROLLER_MANAGER, "/CN=system:kube-controller-manager"),
        Certificate(SCHEDULER, "/CN=system:kube-scheduler"),
        Certificate(PROXY, "/CN=system:kube-proxy"),
        Certificate(DNS, f"/CN={DNS}"),
        Certificate(
            "kube-apiserver",
            "/CN=kube-apiserver",
            (
                f"IP:{HOST}",
                f"IP:{KUBERNETES_SERVICE}",
                "DNS:kubernetes",
                "DNS:kubernetes.default",
                "DNS:kubernetes.default.svc",
                "DNS:kubernetes.default.svc.cluster.local",
            ),
        ),
        *(
            Certificate(
                node.name,
                f"/O=system:nodes/CN=system:node:{node.name}",
                (f"DNS:{node.name}", f"IP:{node.address}"),
            )
            for node in nodes
        ),
    ]


def make(folder: Path, wanted: list[Certificate]) -> None:
    """Makes the authority, the service accounts' key and the certificates that aren't there."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    authority = folder / "ca.crt"
    if not authority.exists():
        _finish(authority, "req", "-x509", *KEY, "-subj", "/CN=skirret-local")
    accounts = folder / "accounts.pub"
    if not accounts.exists():
        key = folder / "accounts.key"
        commands.output("openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", KEY[3], "-out", key)
        commands.output("openssl", "pkey", "-in", key, "-pubout", "-out", accounts)
    for certificate in wanted:
        path = folder / f"{certificate.name}.crt"
        if path.exists():
            continue
        names = ",".join(certificate.addresses)
        _finish(
            path,
            *("req", "-x509", *KEY, "-CA", authority, "-CAkey", authority.with_suffix(".key")),
            *("-subj", certificate.subject, "-addext", "basicConstraints=critical,CA:FALSE"),
            *("-addext", "extendedKeyUsage=serverAuth,clientAuth"),
            *(("-addext", f"subjectAltName={names}") if names else ()),
        )


def _finish(path: Path, *openssl: str | Path) -> None:
    """The certificate appears last and whole: one that exists has its key."""
    new = path.with_suffix(".new")
    commands.output("openssl", *openssl, "-keyout", path.with_suffix(".key"), "-out", new)
    new.rename(path)
