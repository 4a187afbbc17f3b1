# Sourced by scripts that need a kernel of Debian's.

# Unpacks the kernel of an architecture into a directory, without installing it. The list of
# packages is one of its own, in a directory for work.
#
#	fetch_kernel ARCHITECTURE WORK DIRECTORY
fetch_kernel() {
  local arch=$1 work=$2 to=$3
  mkdir -p "$work/$arch/lists/partial" "$work/$arch/cache/archives/partial" "$to"
  local apt=(-q -o "APT::Architecture=$arch" -o "APT::Architectures=$arch"
    -o "Dir::State::Lists=$work/$arch/lists" -o "Dir::Cache=$work/$arch/cache")
  apt-get "${apt[@]}" update >/dev/null
  local package
  package=$(apt-cache "${apt[@]}" depends "linux-image-$arch" |
    sed -n 's/.*Depends: \(linux-image-[^ ]*\)/\1/p' | head -1)
  echo "== $package"
  (cd "$work/$arch" && apt-get "${apt[@]}" download "$package" >/dev/null 2>&1 &&
    dpkg-deb -x ./*.deb "$to" && rm ./*.deb)
}
