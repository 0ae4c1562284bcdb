"""Resources that the end-to-end tests apply."""

from __future__ import annotations

import json
from typing import Any

API = "skirret.dev/v1alpha1"


def inference_model(name: str, **spec: Any) -> dict[str, Any]:
    """The small model from the local volume; `spec` replaces top-level fields of the spec."""
    return {
        "apiVersion": API,
        "kind": "InferenceModel",
        "metadata": {"name": name},
        "spec": {
            "model": {"source": "pvc://models/smollm2"},
            "profile": "cpu",
            "server": {"contextLength": 2048, "maxTotalTokens": 16384},
            **spec,
        },
    }


def batch_job(name: str, uri: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": API,
        "kind": "BatchJob",
        "metadata": {"name": name},
        "spec": {
            "input": {"uri": uri},
            "endpoint": "/v1/chat/completions",
            "completionWindow": "1h",
            **spec,
        },
    }


def chat_lines(model: str, count: int, max_tokens: int = 8, **body: Any) -> str:
    """A batch input of `count` short questions, with ids `line-0` and on."""
    return "".join(
        json.dumps(
            {
                "custom_id": f"line-{i}",
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": {
                    "model": model,
                    "messages": [{"role": "user", "content": f"Say the number {i}."}],
                    "max_tokens": max_tokens,
                    "temperature": 0,
                    **body,
                },
            }
        )
        + "\n"
        for i in range(count)
    )
