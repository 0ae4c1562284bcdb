"""A tenant is a namespace: its store, its internal token and its keys, read from mounted files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel


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


class ApiKey(BaseModel):
    """A key as it is kept: its hash, never itself. What it doesn't limit is not limited."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, validate_by_name=True
    )

    name: str = Field(default="", exclude=True, description="that of its file")
    sha256: str = Field(pattern="^[0-9a-f]{64}$", description="of the key, in hexadecimal digits")
    namespace: str = Field(description="whose files, batches and models it is for")
    models: tuple[str, ...] = Field(default=(), description="served names or namespace/name")
    expires: AwareDatetime | None = Field(default=None, description="from when it is refused")
    requests_per_minute: int | None = Field(default=None, ge=1)
    tokens_per_minute: int | None = Field(default=None, ge=1, description="prompt and completion")
    tokens_per_day: int | None = Field(default=None, ge=1, description="of the day in UTC")
    streams: int | None = Field(default=None, ge=1, description="at once")

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def parse_key(name: str, text: bytes | str) -> ApiKey:
    """One entry of the keys' Secret. Raises ValueError."""
    try:
        return ApiKey.model_validate_json(text).model_copy(update={"name": name})
    except ValidationError as error:
        reasons = "; ".join(
            f"{'.'.join(map(str, each['loc'])) or 'file'}: {each['msg']}"
            for each in error.errors(include_input=False)
        )
        raise ValueError(f"{name} is no API key: {reasons}") from None


def read_keys(folder: Path) -> dict[bytes, ApiKey]:
    """Every key of a mounted Secret, one a file, by its digest. Raises OSError or ValueError."""
    found: dict[bytes, ApiKey] = {}
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or not path.is_file():  # the mount's own
            continue
        try:
            key = parse_key(path.name, path.read_bytes())
        except ValueError as error:
            raise ValueError(f"{folder}/{error}") from None
        digest = bytes.fromhex(key.sha256)
        if digest in found:
            raise ValueError(f"{folder}: {found[digest].name} and {key.name} are the same key")
        found[digest] = key
    return found
