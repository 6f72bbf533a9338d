#!/bin/sh
# peers.sh gets the servers pubsubd is compared with: nginx with Nchan from
# Debian, and Centrifugo and Mercure, built from pinned Go modules into .tools/
# at the root of the repository. What is already there is left as it is. It goes
# on when one cannot be had, names it, and fails at the end: the comparison
# leaves out what is missing.
set -u

centrifugo_module=github.com/centrifugal/centrifugo/v5
centrifugo_version=v5.4.9
mercure_module=github.com/dunglas/mercure
mercure_version=v0.18.0

GO=${GO:-go}
root=$(cd "$(dirname "$0")/../.." && pwd)
tools=$root/.tools
nchan=/usr/lib/nginx/modules/ngx_nchan_module.so
missing=
PATH=$PATH:/usr/sbin # nginx is there, and only root looks there
mkdir -p "$tools"

# build_module MODULE VERSION PACKAGE NAME VERSION_VARIABLE builds
# .tools/NAME-VERSION. Both modules have replace directives, so "go install
# PACKAGE@VERSION" refuses them: build in a copy of the module's folder.
build_module() {
	binary=$tools/$4-$2
	test -x "$binary" && return
	echo "building $4 $2: a few minutes, once"
	folder=$($GO mod download -json "$1@$2" | sed -n 's/^[[:space:]]*"Dir": "\(.*\)",*$/\1/p')
	copy=$(mktemp -d) || return
	test -n "$folder" && cp -R "$folder/." "$copy" && chmod -R u+w "$copy" &&
		(cd "$copy" && CGO_ENABLED=0 GOWORK=off $GO build -trimpath -ldflags "-s -w -X $5=${2#v}" -o "$binary" "$3")
	status=$?
	rm -rf "$copy"
	return $status
}

if ! command -v nginx >/dev/null 2>&1 || ! test -e "$nchan"; then
	if command -v apt-get >/dev/null 2>&1 && test "$(id -u)" = 0; then
		# Run level 1 keeps the package from starting a service: only its program is wanted.
		apt-get update -q && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive \
			apt-get install -q -y --no-install-recommends nginx-light libnginx-mod-nchan
	else
		echo "nginx with Nchan is missing, and this is not root on Debian: install nginx-light and libnginx-mod-nchan" >&2
	fi
	command -v nginx >/dev/null 2>&1 && test -e "$nchan" || missing="$missing nchan"
fi
build_module $centrifugo_module $centrifugo_version . centrifugo \
	$centrifugo_module/internal/build.Version || missing="$missing centrifugo"
build_module $mercure_module $mercure_version ./cmd/mercure mercure \
	main.version || missing="$missing mercure"

if test -n "$missing"; then
	echo "not available:$missing" >&2
	exit 1
fi
echo "nchan, centrifugo and mercure are here"
