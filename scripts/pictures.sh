#!/usr/bin/env bash
# Makes the pictures of docs/pictures: of a report, in headless Chromium. The test that clicks
# through a report takes them. Needs chromedriver; with pngquant the pictures are smaller.
#
#	scripts/pictures.sh
set -euo pipefail
cd "$(dirname "$0")/.."

pictures=$(mktemp -d)
trap 'rm -rf "$pictures"' EXIT
cargo build -p kmem-preload -p kmem-cli
KMEM_PICTURES=$pictures cargo test -p kmem-cli --test report a_report_can_be_clicked_through
mkdir -p docs/pictures
for name in report-desktop report-phone flame-desktop; do
  cp "$pictures/$name.png" "docs/pictures/$name.png"
  # Fewer colours make a smaller file, where there is a tool for it.
  if command -v pngquant >/dev/null; then
    pngquant --force --ext .png --skip-if-larger 64 "docs/pictures/$name.png" || true
  fi
done
ls -l docs/pictures
