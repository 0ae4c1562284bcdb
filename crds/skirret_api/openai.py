"""OpenAI's wire objects that more than one of our processes touches."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

BATCH_ENDPOINTS = ("/v1/chat/completions", "/v1/completions")

BatchStatus = Literal[
    "validating",
    "in_progress",
    "finalizing",
    "completed",
    "failed",
    "expired",
    "cancelling",
    "cancelled",
]
TERMINAL: frozenset[BatchStatus] = frozenset({"completed", "failed", "expired", "cancelled"})


class Wire(BaseModel):
    model_config = ConfigDict(extra="forbid")


class FileObject(Wire):
    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None = None
    filename: str
    purpose: str
    status: Literal["uploaded", "processed", "error"] = "processed"
    status_details: str | None = None


class BatchError(Wire):
    code: str
    message: str
    param: str | None = None
    line: int | None = None


class BatchErrors(Wire):
    object: Literal["list"] = "list"
    data: list[BatchError] = []


class RequestCounts(Wire):
    total: int = 0
    completed: int = 0
    failed: int = 0


class InputTokensDetails(Wire):
    cached_tokens: int = 0
    predicted_cached_tokens: int = 0  # ours: what the order of the lines should have found


class OutputTokensDetails(Wire):
    reasoning_tokens: int = 0


class BatchUsage(Wire):
    input_tokens: int = 0
    input_tokens_details: InputTokensDetails = InputTokensDetails()
    output_tokens: int = 0
    output_tokens_details: OutputTokensDetails = OutputTokensDetails()
    total_tokens: int = 0


class Batch(Wire):
    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    model: str | None = None
    errors: BatchErrors | None = None
    input_file_id: str
    completion_window: str
    status: BatchStatus
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int
    in_progress_at: int | None = None
    expires_at: int
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts = RequestCounts()
    usage: BatchUsage | None = None
    metadata: dict[str, str] | None = None
