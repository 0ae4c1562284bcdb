"""Skirret on the local Kubernetes: the cluster up, this code's image loaded, the chart's values."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from minio import Minio

from skirret_local import cluster
from skirret_local.installation import ROOT, Site


def site(namespace: str, *more_values: Path, gpus: int | None = None) -> Site:
    """The namespace with its volumes and a bucket of its name, and the chart's values there."""
    cluster.build_images()
    info = cluster.up(gpus=gpus)
    cluster.namespace(namespace)
    cluster.volumes(namespace)
    bucket = s3()
    if not bucket.bucket_exists(namespace):
        bucket.make_bucket(namespace)
    files = [ROOT / "charts/skirret/values-local.yaml", *more_values]
    return Site(
        kubectl_path=str(info.kubectl),
        helm_path=str(info.helm),
        kube=["--kubeconfig", str(info.kubeconfig)],
        helm_kube=["--kubeconfig", str(info.kubeconfig)],
        namespace=namespace,
        values=[
            *(word for file in files for word in ("--values", str(file))),
            f"--set=store.accessKey={info.store.access_key}",
            f"--set=store.secretKey={info.store.secret_key}",
            f"--set=store.bucket={namespace}",
            f"--set-string=podAnnotations.image={cluster.image_id()}",
        ],
    )


def s3() -> Minio:
    """The store, as this machine reaches it."""
    store = cluster.info().store
    endpoint = urlsplit(store.endpoint)
    return Minio(
        endpoint.netloc,
        access_key=store.access_key,
        secret_key=store.secret_key,
        secure=endpoint.scheme == "https",
    )
