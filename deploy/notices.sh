#!/bin/sh
# Prints what has to go with a binary of pubsubd: its own licence, and the licences and notices of
# Go's libraries and of the modules in it. Licences ask for that wherever a binary goes (Apache-2.0,
# section 4). GOOS and GOARCH choose the platform: each has other packages.
set -eu
tab=$(printf '\t')
goroot=$(go env GOROOT)
export CGO_ENABLED=0

# For each package that is not ours: its module, the module's folder, and its own.
packages=$(go list -deps -f "{{if .Standard}}$(go env GOVERSION)$tab$goroot$tab{{.Dir}}{{else}}{{with .Module}}{{if not .Main}}{{.Path}}@{{.Version}}$tab{{.Dir}}$tab{{\$.Dir}}{{end}}{{end}}{{end}}" ./cmd/pubsubd)

# A folder may hold code of others, with a licence of its own. So this looks from each package's
# folder up to its module's.
files=$(printf '%s\n' "$packages" | while IFS=$tab read -r module root dir; do
	while [ -n "$module" ] && [ -n "$dir" ]; do
		for file in "$dir"/LICEN[CS]E* "$dir"/COPYING* "$dir"/NOTICE* "$dir"/PATENTS*; do
			test ! -f "$file" || printf '%s\t%s\n' "$module${file#"$root"}" "$file"
		done
		test "$dir" != "$root" || break
		dir=${dir%/*}
	done
done | LC_ALL=C sort -u)

for module in $(printf '%s\n' "$packages" | cut -f 1 | sort -u); do
	printf '%s\n' "$files" | grep -q -e "^$module/LICEN" -e "^$module/COPYING" || {
		echo "module $module has no licence: find out what its authors allow" >&2
		exit 1
	}
done

cat LICENSE
printf '%s\n' "$files" | while IFS=$tab read -r name file; do
	printf '\n%s\n%s\n\n' "--------------------------------------------------------------------------------" "$name"
	cat "$file"
done
