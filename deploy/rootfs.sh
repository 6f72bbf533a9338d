#!/bin/sh
# Makes what the image holds, in the directory given: one static binary, its notices,
# and a directory for its log. deploy/Dockerfile runs it, and so does the test that runs
# the result under chroot; it is all that there is.
set -eu
root=${1:?usage: rootfs.sh DIRECTORY}
version=${VERSION:-dev}

mkdir -p "$root/var/lib/pubsubd"
chmod 0700 "$root/var/lib/pubsubd"
# Without cgo nothing is linked that the image would have to bring along.
CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$version" -o "$root/pubsubd" ./cmd/pubsubd
chmod 0555 "$root/pubsubd"
deploy/notices.sh >"$root/NOTICES.txt"
chmod 0444 "$root/NOTICES.txt"
