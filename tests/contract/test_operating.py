"""What dashboards, operators and gateways read of a server."""

from __future__ import annotations

import asyncio
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from skirret_api import internal
from skirret_server.api.app import Access

TOKEN = {internal.TOKEN: "secret"}

# vLLM's names behind `vllm:`, as its dashboards and the routers that read it use them.
TEN = {
    "num_requests_running": "gauge",
    "num_requests_waiting": "gauge",
    "kv_cache_usage_perc": "gauge",
    "prefix_cache_queries": "counter",
    "prefix_cache_hits": "counter",
    "prompt_tokens": "counter",
    "generation_tokens": "counter",
    "time_to_first_token_seconds": "histogram",
    "inter_token_latency_seconds": "histogram",
    "e2e_request_latency_seconds": "histogram",
}
OURS = {
    "kv_cache_evictable_perc": "gauge",
    "evicted_tokens": "counter",
    "lane_requests_running": "gauge",
    "lane_requests_waiting": "gauge",
    "num_preemptions": "counter",
    "engine_steps": "counter",
    "engine_step_seconds": "counter",
    "request_success": "counter",
}


async def test_the_ten_metrics_of_vllms_dashboards_are_here_and_our_own(saying: Any) -> None:
    page = (await saying("a").get("/metrics")).body.decode()
    kinds = {family.name: family.type for family in text_string_to_metric_families(page)}
    expected = {f"skirret:{name}": kind for name, kind in (TEN | OURS).items()}
    assert {name: kinds.get(name) for name in expected} == expected


async def test_what_the_cache_has_is_told_to_the_internal_token_alone(saying: Any) -> None:
    server = saying("a", access=Access(internal_token="secret"))
    assert (await server.get(internal.CACHE_EVENTS)).status == 404
    assert (await server.get(internal.CACHE_EVENTS, TOKEN)).status == 200


async def news(server: Any, epoch: str = "", after: int = -1, wait: int = 0) -> dict[str, Any]:
    query = f"?epoch={epoch}&after={after}&wait={wait}"
    answer: dict[str, Any] = (await server.get(internal.CACHE_EVENTS + query, TOKEN)).json()
    return answer


async def test_blocks_of_a_prompt_are_told_once_it_is_computed_and_when_they_are_lost(
    real: Any, text: Any
) -> None:
    real.app._access = Access(internal_token="secret")
    before = await news(real)
    assert before["full"]
    blocks = [f"{number:016x}" for number in range(3)]
    asked = text(prompt="A long prompt. " * 100, max_tokens=1)
    waiting = asyncio.create_task(news(real, before["epoch"], before["sequence"], 5))
    await asyncio.sleep(0)
    headers = {**TOKEN, internal.BLOCKS: ",".join(blocks)}
    assert (await real.post("/v1/completions", asked, headers)).status == 200
    assert (await waiting)["stored"][0] == blocks[0]
    stored = await news(real, before["epoch"], before["sequence"])
    assert not stored["full"]
    assert stored["stored"] == blocks
    assert stored["removed"] == []
    while (await real.post("/flush_cache", b"")).status == 400:
        await asyncio.sleep(0.01)
    lost = await news(real, before["epoch"], stored["sequence"])
    assert sorted(lost["removed"]) == sorted(stored["stored"])
    netted = await news(real, before["epoch"], before["sequence"])
    assert netted["stored"] == []


async def test_blocks_of_a_client_without_the_token_are_not_believed(real: Any, text: Any) -> None:
    real.app._access = Access(internal_token="secret")
    asked = text(prompt="Another long prompt. " * 100, max_tokens=1)
    await real.post("/v1/completions", asked, {internal.BLOCKS: "00000000000000ff"})
    assert "00000000000000ff" not in (await news(real))["stored"]


async def test_another_epoch_or_a_number_of_the_future_is_told_everything(real: Any) -> None:
    real.app._access = Access(internal_token="secret")
    now = await news(real)
    assert (await news(real, "another", now["sequence"]))["full"]
    assert (await news(real, now["epoch"], now["sequence"] + 1))["full"]
    assert not (await news(real, now["epoch"], now["sequence"]))["full"]
