"""A tenant is a namespace: its store and its internal token, read from mounted files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter


class S3Store(BaseModel):
    """A bucket of any S3-compatible service, or a prefix in one."""

    # Errors are logged, and shown in a status: what is wrong may be the secret key.
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    kind: Literal["s3"] = "s3"
    endpoint: str = Field(description="http(s)://host[:port]")
    bucket: str
    prefix: str = ""
    region: str = "us-east-1"
    accessKey: str = Field(default="", repr=False)
    secretKey: str = Field(default="", repr=False)
    pathStyle: bool = True
    caBundle: str | None = Field(default=None, description="PEM text of a private CA")


class FolderStore(BaseModel):
    """A local folder, for the embedded server and for tests."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["folder"] = "folder"
    path: str


StoreSettings = Annotated[S3Store | FolderStore, Field(discriminator="kind")]
_SETTINGS: TypeAdapter[S3Store | FolderStore] = TypeAdapter(
    StoreSettings, config=ConfigDict(hide_input_in_errors=True)
)


def read_store_settings(path: Path) -> S3Store | FolderStore:
    """The settings in a `store.json`; raises pydantic.ValidationError or OSError."""
    return _SETTINGS.validate_json(path.read_bytes())


@dataclass(frozen=True, slots=True)
class Tenant:
    namespace: str
    store: S3Store | FolderStore
    token: str

    def __repr__(self) -> str:
        return f"Tenant({self.namespace!r})"


def read_tenants(folder: Path) -> dict[str, Tenant]:
    """Every tenant of a mounted Secret, by namespace."""
    found = {}
    for path in sorted(folder.glob("*.store.json")):
        namespace = path.name.removesuffix(".store.json")
        token = (folder / f"{namespace}.token").read_text().strip()
        found[namespace] = Tenant(namespace, read_store_settings(path), token)
    return found
