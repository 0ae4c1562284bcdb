#!/usr/bin/env bash
# What only a GPU can show, in at most 8 minutes: its answers are those of the CPU, and how fast.
#
#   pip install -e '.[server,cuda]'
#   benchmarks/gpu_check.sh                 # SmolLM2 from .cache, or --model FOLDER
#   benchmarks/gpu_check.sh --device cpu    # the same on stand-ins and a tiny model: tests the script
#
# The first run compiles four of FlashInfer's modules, some minutes of the eight. Prints a line for
# each check and a table, writes all to gpu_check.json, and ends with 1 if a check failed or had no
# time left.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
python=${PYTHON:-$root/.venv/bin/python}
[ -x "$python" ] || python=python3
export PYTHONPATH="$root/crds:$root/server${PYTHONPATH:+:$PYTHONPATH}"
exec timeout --signal=INT 480 "$python" "$here/gpu_check.py" "$@"
