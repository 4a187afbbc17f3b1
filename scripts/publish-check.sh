#!/usr/bin/env bash
#
# Checks what the registry would get. Every crate that is published is packed and built from its
# package, in order, by the oldest toolchain that the crates promise. Nothing is uploaded.
#
# usage: scripts/publish-check.sh [--names]
#
# --names also asks the registry whether each name is free.

set -euo pipefail
. "$(dirname "$0")/options.sh"

names=0
read_options 'names!' "$@"
cd "$(dirname "$0")/.."
. scripts/not-run.sh

toolchain=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
if ! rustup toolchain install "$toolchain" --profile minimal >/dev/null 2>&1; then
  not_run "packages of the registry" "there is no toolchain $toolchain"
  exit
fi

published() {
  cargo metadata --no-deps --format-version 1 | python3 -c '
import json, sys
for package in json.load(sys.stdin)["packages"]:
    if package["publish"] != []:
        print(package["name"])'
}

# The registry would refuse a crate without these, or show nothing where they belong.
for crate in $(published); do
  for field in description documentation keywords categories license rust-version; do
    if ! grep -q "^$field\b" "crates/$crate/Cargo.toml"; then
      echo "publish-check.sh: crates/$crate/Cargo.toml has no $field" >&2
      exit 1
    fi
  done
  # The layout of the index is that of names with four letters and more.
  address=https://index.crates.io/${crate:0:2}/${crate:2:2}/$crate
  if ((names)); then
    case $(curl -s -o /dev/null -w '%{http_code}' "$address") in
    404) echo "$crate: free" ;;
    200) echo "$crate: taken" ;;
    *) not_run "the name $crate" "the registry does not answer" ;;
    esac
  fi
done

# Changes that are not committed would be refused: they are part of what is checked here.
cargo "+$toolchain" publish --workspace --dry-run --allow-dirty --target-dir target/publish \
  2>&1 | grep -v '^ *\(Compiling\|Downloaded\|Downloading\|Updating\|Uploading\|Unpacking\)'
echo "publish-check.sh: $(published | wc -l) crates build from their packages with $toolchain"
