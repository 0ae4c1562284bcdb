#!/usr/bin/env bash
# Installs the gateways ours is measured beside, in an environment of their own: setup_gateways.sh FOLDER
set -euo pipefail
python3 -m venv "$1"
"$1/bin/pip" install -q sglang-router 'litellm[proxy]'
