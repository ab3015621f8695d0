#!/usr/bin/env bash
# Puts pinned packages into an environment of their own, once: install.sh LIST ENVIRONMENT. LIST names all that has to be there: nothing else
# is looked up. uv does it, since it loads many packages at a time; pip brings uv where there is none.
set -euo pipefail

list=$1 env=$2
cache=$(dirname "$env")
uv_version=0.13.9

mkdir -p "$cache"
exec 9>"$cache/lock" # of two runs one installs, and the other finds all there
flock 9
if cmp -s "$list" "$env/installed.txt"; then exit; fi

echo "installing ${list##*/} into $env" >&2
rm -rf "$env"
if ! uv=$(command -v uv); then
	uv=$cache/uv/bin/uv
	if ! [ -x "$uv" ]; then
		if ! python3 -m pip --version >/dev/null 2>&1; then
			echo "installing python3-pip" >&2
			apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-pip
		fi
		rm -rf "$cache/uv"
		python3 -m pip install -q --disable-pip-version-check --root-user-action ignore --target "$cache/uv" "uv==$uv_version"
	fi
fi
# uv reads no settings of pip: a machine that gives pip another registry or certificates means uv, too.
index=${UV_DEFAULT_INDEX:-${PIP_INDEX_URL:-$(python3 -m pip config get global.index-url 2>/dev/null || true)}}
if [ -n "$index" ]; then export UV_DEFAULT_INDEX=$index; fi
export UV_SYSTEM_CERTS=1
"$uv" venv -q --python '>=3.11,<3.14' "$env" # uv looks for such a Python here before it loads one
"$uv" pip install -q --no-deps --python "$env/bin/python" -r "$list"
cp "$list" "$env/installed.txt"
echo "installed after $SECONDS s" >&2
