#!/usr/bin/env bash
# make test-packages: makes two releases, the older one twice, and tries their packages on booted machines (deploy/packages_test.go).
#
# PACKAGES=short makes the two debs alone, compressed as always, and tries these: installation, start, purge, and an upgrade under traffic.
# It does not compare two builds, and leaves out a roll back, the rpm, the image, the newcomer, and lintian with its hundred packages.
set -euo pipefail
cd "$(dirname "$0")/../.."

mode=${PACKAGES:-full}
out=$PWD/out/packages
mkdir -p "$out"
# The caller's checkout, or a copy without its history.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH

# Everything ends with its first process. systemd-nspawn keeps its locks in /run.
contained() {
	unshare --net --mount --pid --fork --kill-child --mount-proc sh -c 'mount -t tmpfs tmpfs /run && exec "$@"' sh "$@"
}
contained true || { echo "test-packages boots containers of systemd-nspawn: run it as root, where root may make namespaces and mounts" >&2; exit 1; }

missing=
for need in "debootstrap:debootstrap debian-archive-keyring" systemd-nspawn:systemd-container haproxy ip:iproute2 \
	$([ "$mode" = short ] || echo lintian podman); do
	command -v "${need%%:*}" >/dev/null || missing="$missing ${need##*:}"
done
if [ -n "$missing" ]; then
	apt-get update -qq
	# shellcheck disable=SC2086 # names without spaces
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
fi

# A Debian with systemd, curl and rpm, without grapevine: 400 MB, kept for the next time.
base=${PACKAGES_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/grapevine}/bookworm-rpm
if [ ! -d "$base" ]; then
	mkdir -p "${base%/*}"
	rm -rf "$base.part"
	debootstrap --variant=minbase --include=systemd,systemd-sysv,dbus,curl,rpm bookworm "$base.part" >"$out/debootstrap.log"
	mv "$base.part" "$base"
fi &
debian=$!

release() { go run ./deploy/release -arch amd64 "$@"; }
# What the next release may write, beside which this one must run.
newer=(-version 1.1.0 -tags newer -out "$out/new")
if [ "$mode" = short ]; then # one after the other: the second finds in Go's cache what the first compiled
	release -deb-only -version 1.0.0 -out "$out/old"
	release -deb-only "${newer[@]}"
else
	copy=$(mktemp -d)
	trap 'rm -rf "$copy"' EXIT
	tar -c --exclude=./.git --exclude=./bin --exclude=./out . | tar -x -C "$copy"
	release -version 1.0.0 -out "$out/old" &
	old=$!
	(cd "$copy" && umask 077 && TZ=Asia/Tokyo LC_ALL=C release -version 1.0.0 -out "$copy/out") &
	again=$!
	release "${newer[@]}" &
	for job in $old $again $!; do wait "$job"; done
	cmp "$out/old/SHA256SUMS" "$copy/out/SHA256SUMS"
	(cd "$copy/out" && sha256sum --quiet -c "$out/old/SHA256SUMS")
	echo "two builds in different directories have the same bytes: $(wc -l <"$out/old/SHA256SUMS") files"
	lintian --fail-on error,warning,info "$out"/old/*.deb "$out"/new/*.deb
	echo "lintian finds nothing"
fi
GRAPEVINE_PACKAGES=$out go test -count=1 -v -timeout 7m -run '^TestGoInstall$' ./deploy/release
go test -c -o "$out/deploy.test" ./deploy
wait "$debian"

cd deploy
export GRAPEVINE_PACKAGES=$out GRAPEVINE_BASE=$base GRAPEVINE_DEPLOY=$mode
tests="^(TestInstallAndPurge|TestUpgradePackages$([ "$mode" = short ] || echo '|TestRPM|TestImage|TestNewcomer'))\$"
contained "$out/deploy.test" -test.v -test.timeout 8m -test.run "$tests"
