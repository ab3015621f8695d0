#!/usr/bin/env bash
# make test-packages: makes two releases, the older one twice, and tries their packages on booted machines (deploy/packages_test.go).
# PACKAGES=short leaves out lintian, which comes with a hundred packages of its own, a roll back, and the newcomer, who plays the demo.
set -euo pipefail
cd "$(dirname "$0")/../.."

mode=${PACKAGES:-full}
out=$PWD/out/packages
mkdir -p "$out"
# The caller's checkout, or a copy without its history.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH

[ "$(id -u)" = 0 ] || { echo "test-packages boots containers of systemd-nspawn: run it as root" >&2; exit 1; }
missing=
for need in debootstrap systemd-nspawn:systemd-container haproxy ip:iproute2 $([ "$mode" = short ] || echo lintian); do
	command -v "${need%%:*}" >/dev/null || missing="$missing ${need##*:}"
done
if [ -n "$missing" ]; then
	apt-get update -qq
	# shellcheck disable=SC2086 # names without spaces
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
fi

# A Debian with systemd and curl, without grapevine: 250 MB, kept for the next time.
base=${PACKAGES_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/grapevine}/bookworm
if [ ! -d "$base" ]; then
	mkdir -p "${base%/*}"
	rm -rf "$base.part"
	debootstrap --variant=minbase --include=systemd,systemd-sysv,dbus,curl bookworm "$base.part" >"$out/debootstrap.log"
	mv "$base.part" "$base"
fi &
debian=$!

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
tar -c --exclude=./.git --exclude=./bin --exclude=./out . | tar -x -C "$copy"
go run ./deploy/release -version 1.0.0 -arch amd64 -out "$out/old" &
old=$!
(cd "$copy" && umask 077 && TZ=Asia/Tokyo LC_ALL=C go run ./deploy/release -version 1.0.0 -arch amd64 -out "$copy/out") &
again=$!
# What the next release may write, beside which this one must run.
go run ./deploy/release -version 1.1.0 -tags newer -arch amd64 -out "$out/new" &
new=$!
for job in $debian $old $again $new; do wait "$job"; done

cmp "$out/old/SHA256SUMS" "$copy/out/SHA256SUMS"
(cd "$copy/out" && sha256sum --quiet -c "$out/old/SHA256SUMS")
echo "two builds in different directories have the same bytes: $(wc -l <"$out/old/SHA256SUMS") files"
if [ "$mode" != short ]; then
	lintian --fail-on error,warning,info "$out"/old/*.deb "$out"/new/*.deb
	echo "lintian finds nothing"
fi

go test -c -o "$out/deploy.test" ./deploy
cd deploy
# Everything ends with the tests. systemd-nspawn keeps its locks in /run.
export GRAPEVINE_PACKAGES=$out GRAPEVINE_BASE=$base GRAPEVINE_DEPLOY=$mode
tests="^(TestInstallAndPurge|TestUpgradePackages$([ "$mode" = short ] || echo '|TestNewcomer'))\$"
unshare --net --mount --pid --fork --kill-child --mount-proc sh -c 'mount -t tmpfs tmpfs /run && exec "$@"' sh \
	"$out/deploy.test" -test.v -test.timeout 8m -test.run "$tests"
