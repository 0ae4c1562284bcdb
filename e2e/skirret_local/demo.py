"""`make demo`: the main job from nothing, by the commands and clients a user would use."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen

from openai import OpenAI
from openai.types.chat import ChatCompletionUserMessageParam

from skirret_local import local
from skirret_local.installation import ROOT, Site, until
from skirret_local.progress import fail, say

# Contexts of clusters that people make to throw away; any other needs to be meant.
THROWAWAY = re.compile(r"^(kind-|k3d-|minikube|docker-desktop|rancher-desktop|skirret-local)")
QUESTION: list[ChatCompletionUserMessageParam] = [
    {"role": "user", "content": "What is the capital of France?"}
]
MODEL = "smollm2"


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--context", help="a kube context to use instead of a local Kubernetes")
    given = parser.parse_args(arguments)
    site = site_of_context(given.context) if given.context else local.site("skirret")
    say(f"chart: installing into namespace {site.namespace}")
    started = time.monotonic()
    site.install()
    say(f"chart: installed in {time.monotonic() - started:.0f} s")
    serve(site)
    with gateway(site) as url:
        client = OpenAI(base_url=f"{url}/v1", api_key="none")
        chat(client)
        name = batch(client).replace("_", "-")
        until(
            "its resource says so",
            lambda: (
                site.condition("batchjob.skirret.dev", name, "Complete").get("status") == "True"
            ),
            within=15,
        )
    for kind in ("inferencemodels", "batchjobs"):
        show(f"kubectl get {kind}", site.kubectl("get", f"{kind}.skirret.dev"))
    say(f"to go on: {how_to_go_on(site)}")


def site_of_context(context: str) -> Site:
    if not THROWAWAY.match(context) and os.environ.get("I_MEAN_IT") != context:
        fail(
            f"context {context!r} does not look like a cluster made to try things on; "
            f"to use it all the same: I_MEAN_IT={context} make demo CONTEXT={context}"
        )
    values = os.environ.get("VALUES")
    if not values:
        fail(
            "a cluster of yours needs VALUES=file.yaml: images it can pull, and a store "
            "(see examples/values-minio.yaml)"
        )
    return Site(
        kubectl_path=shutil.which("kubectl") or str(ROOT / ".venv/bin/kubectl"),
        helm_path=shutil.which("helm") or fail("helm is not on the PATH"),
        kube=["--context", context],
        helm_kube=["--kube-context", context],
        namespace="skirret",
        values=["--create-namespace", "--values", values],
    )


def serve(site: Site) -> None:
    say("model: kubectl apply -f examples/model.yaml")
    started = time.monotonic()
    site.apply((ROOT / "examples/model.yaml").read_text())
    told = ""

    def ready() -> bool:
        nonlocal told
        condition = site.condition("inferencemodel.skirret.dev", MODEL, "Ready")
        line = f"{condition.get('reason', '')} {condition.get('message', '')}".strip()
        if line and line != told:
            told = line
            say(f"model: {line} ({time.monotonic() - started:.0f} s)")
        return condition.get("status") == "True"

    until(f"model {MODEL} is ready", ready, within=600)


@contextmanager
def gateway(site: Site) -> Iterator[str]:
    """A port forwarded to the gateway, as on a cluster far away."""
    command = [
        site.kubectl_path, *site.kube, "--namespace", site.namespace,
        "port-forward", f"service/{site.release}-gateway", ":8080",
    ]  # fmt: skip
    with Popen(command, stdout=PIPE, stderr=DEVNULL, text=True) as forward:
        try:
            assert forward.stdout is not None
            line = forward.stdout.readline()
            port = re.search(r":(\d+) ->", line)
            if port is None:
                fail(f"kubectl could not forward a port to the gateway: {line!r}")
            yield f"http://127.0.0.1:{port[1]}"
        finally:
            forward.terminate()


def chat(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, temperature=0, max_tokens=32
    )
    show("an answer through the gateway", answer.choices[0].message.content or "")
    print("\n--- a streamed answer\n")
    stream = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Name three colours."}],
        temperature=0,
        max_tokens=48,
        stream=True,
    )
    for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            print(chunk.choices[0].delta.content, end="", flush=True)
    print()


def batch(client: OpenAI) -> str:
    """Five questions by the Batches API, waited for; gives the batch's id."""
    countries = ("France", "Italy", "Japan", "Egypt", "Peru")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "capitals.jsonl"
        path.write_text("".join(json.dumps(line(country)) + "\n" for country in countries))
        with path.open("rb") as file:
            uploaded = client.files.create(file=file, purpose="batch")
    made = client.batches.create(
        input_file_id=uploaded.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    say(f"batch: {made.id} with {len(countries)} lines")
    ended = until(
        "the batch ends",
        lambda: next(
            (x for x in [client.batches.retrieve(made.id)] if x.status in ("completed", "failed")),
            None,
        ),
        within=300,
        every=1,
    )
    if ended.output_file_id is None:
        fail(f"the batch is {ended.status}: {ended.errors}")
    content = client.files.content(ended.output_file_id).text
    lines = []
    for row in map(json.loads, content.splitlines()):
        text = row["response"]["body"]["choices"][0]["message"]["content"]
        lines.append(f"{row['custom_id']}: {text!r}")
    show(f"the batch's lines ({ended.status})", "\n".join(lines))
    return ended.id


def line(country: str) -> dict[str, object]:
    return {
        "custom_id": f"capital-of-{country.lower()}",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {
            "model": MODEL,
            "messages": [{"role": "user", "content": f"What is the capital of {country}?"}],
            "temperature": 0,
            "max_tokens": 32,
        },
    }


def show(title: str, text: str) -> None:
    print(f"\n--- {title}\n\n{text.rstrip()}\n", flush=True)


def how_to_go_on(site: Site) -> str:
    kubectl = " ".join([os.path.relpath(site.kubectl_path), *site.kube, "-n", site.namespace])
    return (
        f"`{kubectl} get skirret`, "
        f"`{kubectl} port-forward service/{site.release}-gateway 8080`, "
        "then any OpenAI client at http://127.0.0.1:8080/v1; examples/ has more resources; "
        "`make down` removes everything"
    )


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:
        fail("stopped; `make demo` goes on from here, `make down` removes everything")
