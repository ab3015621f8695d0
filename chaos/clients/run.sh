#!/usr/bin/env bash
# Runs the official openai and anthropic Python clients through a grapevine router in front of two emulated engines.
# Needs the built router (GRAPEVINE, default bin/grapevine), grapevine-lab beside it, python3 and pip. Everything it starts listens on loopback and is
# ended by its process id.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
grapevine=${GRAPEVINE:-$root/bin/grapevine}
lab=$(dirname "$grapevine")/grapevine-lab
env=$root/.venv/clients
logs=$(mktemp -d)
pids=()

stop() {
	status=$?
	for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
	for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
	if [ "$status" -ne 0 ]; then
		for log in "$logs"/*.log; do [ -s "$log" ] && { echo "--- ${log##*/}"; tail -n 30 "$log"; } >&2; done
	fi
	rm -rf "$logs"
	exit "$status"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

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
		PYTHONPATH="$env/site" python3 "$@"
	fi
}

# await URL NAME PID: until the server answers, or its process has ended, or ten seconds have passed.
await() {
	for _ in $(seq 100); do
		if python3 -c 'import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=1)' "$1" 2>/dev/null; then return; fi
		kill -0 "$3" 2>/dev/null || { echo "$2 ended at once" >&2; exit 1; }
		sleep 0.1
	done
	echo "$2 does not answer on $1" >&2
	exit 1
}

for program in "$grapevine" "$lab"; do
	[ -x "$program" ] || { echo "no $program: run make build" >&2; exit 1; }
done
install

read -r e1 e2 data admin strict strictadmin < <(python3 - <<'PY'
import socket
held = [socket.create_server(("127.0.0.1", 0)) for _ in range(6)]
print(*(s.getsockname()[1] for s in held))
PY
)
model=test-model
for port in "$e1" "$e2"; do
	"$lab" engine --listen "127.0.0.1:$port" --model "$model" >"$logs/engine-$port.log" 2>&1 &
	pids+=($!)
	await "http://127.0.0.1:$port/health" "the engine on port $port" "$!"
done
# One router that asks engines for their models, and lets them judge a model that none has listed; one that was told, and refuses
# it itself. They share the secret, so that each reads the ids of responses that the other made.
export GRAPEVINE_SECRET="the secret that both routers share"
"$grapevine" serve --listen "127.0.0.1:$data" --admin "127.0.0.1:$admin" --drain-grace 0s --response-headers all \
	--backend "http://127.0.0.1:$e1" --backend "http://127.0.0.1:$e2" >"$logs/serve.log" 2>&1 &
pids+=($!)
await "http://127.0.0.1:$data/readyz" "the router" "$!"
"$grapevine" serve --listen "127.0.0.1:$strict" --admin "127.0.0.1:$strictadmin" --drain-grace 0s --response-headers all \
	--backend "http://127.0.0.1:$e1,models=$model" --backend "http://127.0.0.1:$e2,models=$model" >"$logs/serve-strict.log" 2>&1 &
pids+=($!)
await "http://127.0.0.1:$strict/readyz" "the second router" "$!"

export GRAPEVINE_URL="http://127.0.0.1:$data" STRICT_URL="http://127.0.0.1:$strict"
export ENGINE_URLS="http://127.0.0.1:$e1 http://127.0.0.1:$e2" MODEL="$model"
# A proxy set for the machine must not stand between the clients and loopback.
export NO_PROXY=127.0.0.1 no_proxy=127.0.0.1
python "$here/test_clients.py"
