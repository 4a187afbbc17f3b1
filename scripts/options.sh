# Sourced by other scripts, which have set `repository`. For --help they print their head, from its
# third line to the first empty one.

die() {
	printf '%s: %s\n' "$(basename "$0" .sh)" "$*" >&2
	exit 2
}

# read_options NAMES ARGUMENT... sets a variable for each option: --NAME VALUE.
read_options() {
	local names=" $1 "
	shift
	while (($#)); do
		case $1 in
		-h | --help)
			sed -n '3,/^$/s/^# \{0,1\}//p' "$0"
			exit 0
			;;
		--*)
			[[ $names == *" ${1#--} "* ]] || die "unknown option $1"
			(($# > 1)) || die "$1 needs a value"
			declare -g "${1#--}=$2"
			shift
			;;
		*) die "unknown option $1" ;;
		esac
		shift
	done
}

# Sets `library` to that of an option, or of this repository.
find_library() {
	library=$(readlink -f "${library:-$repository/target/release/libkmem.so}")
	[[ -f $library ]] || die "$library does not exist; cargo build --release"
}

# Sets `kmem` to that of an option, or beside the library.
find_command() {
	kmem=$(readlink -f "${kmem:-$(dirname "$library")/kmem}")
	[[ -x $kmem ]] || die "$kmem does not exist; cargo build --release"
}
