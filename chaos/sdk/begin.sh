# For scripts that install the official clients and test the built router with them: sets root, grapevine (GRAPEVINE, default bin/grapevine) and
# logs, a directory whose *.log are shown if the script fails.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
grapevine=${GRAPEVINE:-$root/bin/grapevine}
logs=$(mktemp -d)

stop() {
	status=$?
	if [ "$status" -ne 0 ]; then
		for log in "$logs"/*.log; do [ -s "$log" ] && { echo "--- ${log##*/}"; tail -n 30 "$log"; } >&2; done
	fi
	rm -rf "$logs"
	exit "$status"
}
trap stop EXIT
# Both wait for the tests, which get the signal, too, and end what they started.
trap 'exit 130' INT
trap 'exit 143' TERM

[ -x "$grapevine" ] || { echo "no $grapevine: run make build" >&2; exit 1; }
# A proxy set for the machine must not stand between the clients and loopback.
export NO_PROXY=127.0.0.1 no_proxy=127.0.0.1
# The tests share modules.
export PYTHONPATH="$root/chaos/sdk"
