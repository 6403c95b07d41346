#!/usr/bin/env bash
# Builds as the caller, then runs the demo as root: only that needs it.
set -euo pipefail
cd "$(dirname "$0")/.."
GO=${GO:-go}

missing=()
need() { command -v "$1" >/dev/null || missing+=("$1: $2"); }
need "$GO" "install Go 1.26 or newer from https://go.dev/dl"
need make "apt-get install make"
need mount "apt-get install mount"
[ "$(uname -s)" = Linux ] || missing+=("Linux: the demo makes its machines out of namespaces")
[ "$(id -u)" = 0 ] || need sudo "run as root, or apt-get install sudo"
grep -qw overlay /proc/filesystems || modprobe overlay 2>/dev/null || missing+=("overlay: a kernel with overlayfs")
if [ ${#missing[@]} -gt 0 ]; then
	printf 'the demo needs, and did not find:\n' >&2
	printf '  %s\n' "${missing[@]}" >&2
	exit 1
fi

${MAKE:-make} --no-print-directory build
mkdir -p dist
CGO_ENABLED=0 $GO build -trimpath -ldflags '-s -w' -o dist/web ./scripts/webapp
CGO_ENABLED=0 $GO build -trimpath -o dist/demo ./scripts/demo
$GO run ./scripts/mkimage -o dist/web.tar -ref demo/web:1 dist/web

kubectl=${KUBECTL:-${XDG_CACHE_HOME:-$HOME/.cache}/shepherd/kubectl}
[ -x "$kubectl" ] || kubectl=$(command -v kubectl || true)
run=(dist/demo -bin bin -image dist/web.tar -manifest scripts/demo/web.yaml -kubectl "$kubectl" "$@")
[ "$(id -u)" = 0 ] || run=(sudo "${run[@]}")
exec "${run[@]}"
