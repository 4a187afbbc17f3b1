#!/usr/bin/env bash
#
# Makes the files of a release out of the last commit, and checks that they can be made again.
# Uploads nothing.
#
# usage: release.sh [--out DIR] [--trial] [--tag]
#
#     --out DIR  where the files go (default: target/release-files)
#     --trial    also of a version whose changes have no date yet
#     --tag      tags the commit, with the changes of the version as its message
#
# The files:
#
#     kmem-VERSION.tar.gz                    the sources, as git has them
#     kmem-VERSION-MACHINE-linux.tar.gz      what `make install PREFIX=/usr` places
#     kmem_VERSION_ARCH.deb ...              the packages for Debian
#     kmem-VERSION.cdx.json                  the crates in it, as CycloneDX
#     SHA256SUMS                             sums of all
#
# The sources are built twice, in directories of other names. A difference in one byte is an error.

set -euo pipefail

repository=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")
readonly repository
. "$repository/scripts/options.sh"
. "$repository/scripts/not-run.sh"

out=$repository/target/release-files
trial=
tag=
read_options 'out trial! tag!' "$@"
out=$(realpath -m "$out")
[[ ! -e $out || -f $out/SHA256SUMS ]] || die "$out is there already; name a new directory"
[[ -z $tag || -z $trial ]] || die "--tag does not go with --trial"
cd "$repository"

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
name=kmem-$version
machine=$(uname -m)
[[ -z $(git status --porcelain) ]] || die "there are changes that are not committed; commit them"
for manifest in crates/*/Cargo.toml; do
	grep -q '^version.workspace = true$\|^publish = false$' "$manifest" ||
		die "$manifest has a version of its own"
done
# The section of the version, without its title.
changes=$(awk -v title="## [$version]" 'index($0, "## [") == 1 { on = index($0, title) == 1; next }
	on' CHANGELOG.md)
[[ -n $changes ]] || die "CHANGELOG.md has no section for $version"
grep -q "^## \[$version\] - 20[0-9-]*$" CHANGELOG.md || [[ $trial ]] ||
	die "the section of $version in CHANGELOG.md has no date; write the day of the release"
[[ -z $(git tag --list "v$version") ]] || die "there is a tag v$version; raise the version"

# Times in archives are that of the commit.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
rm -rf "$out"
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

archive() {
	tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
		-C "$1" -cf - "$2" | gzip -n >"$3"
}

git archive --prefix="$name/" HEAD | gzip -n >"$out/$name.tar.gz"
for place in one another-place; do
	mkdir -p "$work/$place"
	tar -xzf "$out/$name.tar.gz" -C "$work/$place"
	(
		cd "$work/$place/$name"
		CARGO_TARGET_DIR=target make --silent >&2
		CARGO_TARGET_DIR=target make --silent install PREFIX=/usr \
			DESTDIR="$work/$place/$name-$machine-linux" >&2
	)
	archive "$work/$place" "$name-$machine-linux" "$work/$place.tar.gz"
done
if ! cmp -s "$work/one.tar.gz" "$work/another-place.tar.gz"; then
	diff -rq "$work/one/$name-$machine-linux" "$work/another-place/$name-$machine-linux" >&2 || true
	die "two builds of the same sources differ"
fi
mv "$work/one.tar.gz" "$out/$name-$machine-linux.tar.gz"

if command -v dpkg-deb >/dev/null; then
	(cd "$work/one/$name" && CARGO_TARGET_DIR=target packaging/debian/build.sh "$out" >&2)
else
	not_run "packages for Debian" "there is no dpkg-deb"
fi

# The crates of the command, and so those of the libraries inside it.
tools=$repository/target/release-tools
if [[ -x $tools/bin/cargo-cyclonedx ]] ||
	cargo install --quiet --root "$tools" cargo-cyclonedx >&2; then
	(
		cd "$work/one/$name"
		PATH=$tools/bin:$PATH cargo cyclonedx --quiet --format json --spec-version 1.5 \
			--manifest-path crates/kmem-cli/Cargo.toml --override-filename "$name.cdx"
		# Files of a release do not tell where they were built.
		sed "s|file://$PWD/|file:///$name/|g" "crates/kmem-cli/$name.cdx.json" \
			>"$out/$name.cdx.json"
	)
	if grep -E '"expression": "[^"]*(GPL|MPL|CDDL)' "$out/$name.cdx.json" | grep -v ' OR ' >&2; then
		die "a crate has a licence that kmem may not link"
	fi
else
	not_run "the list of crates" "cargo cannot install cargo-cyclonedx"
fi

(cd "$out" && sha256sum -- * >"$work/sums" && mv "$work/sums" SHA256SUMS)
if [[ $tag ]]; then
	[[ -f $out/$name.cdx.json && -n $(find "$out" -name '*.deb') ]] ||
		die "files are missing, so there is no tag"
	git tag -a "v$version" --cleanup=whitespace -m "kmem $version" -m "$changes"
fi
cat "$out/SHA256SUMS"
