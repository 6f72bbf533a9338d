#!/bin/sh
# Makes a release in a new directory: static binaries with their SBOMs and notices, the packages for
# npm and PyPI, the Helm chart, and checksums. make release runs it, from the top of the repository,
# after it has installed the tools of deploy/checks/release.lock. The same commit, made with the same
# versions of Go, npm, Python and gzip, gives the same bytes.
set -eu
out=${1:?usage: release.sh DIRECTORY}
version=${VERSION:-dev}
platforms=${PLATFORMS:-linux/amd64 linux/arm64 darwin/arm64}
sbom=github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0

umask 022
mkdir "$out"
out=$(cd "$out" && pwd)
for platform in $platforms; do
	os=${platform%/*} arch=${platform#*/}
	binary=$out/pubsubd-$version-$os-$arch
	CGO_ENABLED=0 GOOS=$os GOARCH=$arch go build -trimpath -buildvcs=false \
		-ldflags "-s -w -X main.version=$version" -o "$binary" ./cmd/pubsubd
	# Without a time and a random number, which would differ each time.
	go run "$sbom" bin -json -std -noserial -notimestamp -version "$version" -output "$binary.cdx.json" "$binary"
	GOOS=$os GOARCH=$arch deploy/notices.sh >"$binary.notices.txt"
done

# pkg/pubsubjs/dist is committed, so nothing is built here.
npm pack --silent --ignore-scripts --pack-destination "$out" ./pkg/pubsubjs >/dev/null

# Zip and gzip keep a time. This is the one that npm gives to all files.
SOURCE_DATE_EPOCH=499162500 .tools/release/bin/python -m build --no-isolation --outdir "$out" pkg/pubsubpy >/dev/null

# The chart has links to the licence, the dashboard and the rules, which other folders have.
chart=$(sed -n 's/^version: //p' deploy/helm/pubsubd/Chart.yaml)
tar --format=ustar --dereference --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX \
	-C deploy/helm -c pubsubd | gzip -9n >"$out/pubsubd-$chart.tgz"

cd "$out"
sha256sum -- * >SHA256SUMS
