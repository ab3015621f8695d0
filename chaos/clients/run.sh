#!/usr/bin/env bash
# Runs the official openai and anthropic Python clients through grapevine routers in front of two emulated engines. Needs the built
# router (GRAPEVINE, default bin/grapevine), grapevine-lab beside it, python3 and pip.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
. "$here/../sdk/begin.sh"
env=$root/.venv/clients

# install puts the pinned packages under .venv, once. Debian splits venv from python3; without it pip can still fill a directory.
install() {
	if cmp -s "$here/requirements.txt" "$env/installed.txt"; then return; fi
	rm -rf "$env"
	mkdir -p "$env"
	if ! python3 -m pip --version >/dev/null 2>&1 && ! python3 -m venv "$env/try" >/dev/null 2>&1; then
		echo "installing python3-pip and python3-venv" >&2
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-pip python3-venv
	fi
	rm -rf "$env/try"
	if python3 -m venv "$env/venv" >/dev/null 2>&1; then
		"$env/venv/bin/python" -m pip install -q --disable-pip-version-check -r "$here/requirements.txt"
	else
		rm -rf "$env/venv"
		python3 -m pip install -q --disable-pip-version-check --target "$env/site" -r "$here/requirements.txt"
	fi
	cp "$here/requirements.txt" "$env/installed.txt"
}

python() {
	if [ -x "$env/venv/bin/python" ]; then
		"$env/venv/bin/python" "$@"
	else
		PYTHONPATH="$env/site:$PYTHONPATH" python3 "$@"
	fi
}

lab=$(dirname "$grapevine")/grapevine-lab
[ -x "$lab" ] || { echo "no $lab: run make build" >&2; exit 1; }
install
python "$here/test_clients.py" "$grapevine" "$lab" "$logs"
python "$here/test_keys.py" "$grapevine" "$lab" "$logs"
