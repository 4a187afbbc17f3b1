# Sourced by scripts that need a kernel of Debian's, or other packages of an architecture.

# Sets `apt` to the options for an architecture. The list of packages is one of its own, in a
# directory for work.
#
#	read_packages ARCHITECTURE WORK
read_packages() {
  local arch=$1 work=$2
  mkdir -p "$work/$arch/lists/partial" "$work/$arch/cache/archives/partial"
  apt=(-q -o "APT::Architecture=$arch" -o "APT::Architectures=$arch"
    -o "Dir::State::Lists=$work/$arch/lists" -o "Dir::Cache=$work/$arch/cache")
  apt-get "${apt[@]}" update >/dev/null
}

# Unpacks packages into a directory, without installing them. After read_packages.
#
#	fetch_packages ARCHITECTURE WORK DIRECTORY PACKAGE...
fetch_packages() {
  local arch=$1 work=$2 to=$3 package
  shift 3
  mkdir -p "$to"
  rm -f "$work/$arch"/*.deb
  (cd "$work/$arch" && apt-get "${apt[@]}" download "$@" >/dev/null 2>&1 &&
    for package in ./*.deb; do dpkg-deb -x "$package" "$to" || exit; done && rm ./*.deb)
}

# Unpacks the kernel of an architecture into a directory, without installing it.
#
#	fetch_kernel ARCHITECTURE WORK DIRECTORY
fetch_kernel() {
  local arch=$1 work=$2 to=$3 apt package
  read_packages "$arch" "$work"
  package=$(apt-cache "${apt[@]}" depends "linux-image-$arch" |
    sed -n 's/.*Depends: \(linux-image-[^ ]*\)/\1/p' | head -1)
  echo "== $package"
  fetch_packages "$arch" "$work" "$to" "$package"
}
