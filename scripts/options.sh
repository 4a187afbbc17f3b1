# Sourced by other scripts, which have set `repository`. For --help they print their head, from its
# third line to the first empty one.

die() {
	printf '%s: %s\n' "$(basename "$0" .sh)" "$*" >&2
	exit 2
}

# read_options NAMES ARGUMENT... sets a variable for each option: --NAME VALUE. A name that ends
# with `!` has no value, and its variable becomes 1. A `-` in a name is `_` in its variable. If the
# names end with `...`, all other arguments go to `words`.
read_options() {
	local names=" $1 " name
	shift
	words=()
	while (($#)); do
		name=${1#--}
		case $1 in
		-h | --help)
			sed -n '3,/^$/s/^# \{0,1\}//p' "$0"
			exit 0
			;;
		--*)
			if [[ $names == *" $name! "* ]]; then
				declare -g "${name//-/_}=1"
			else
				[[ $names == *" $name "* ]] || die "unknown option $1"
				(($# > 1)) || die "$1 needs a value"
				declare -g "${name//-/_}=$2"
				shift
			fi
			;;
		*)
			[[ $names == *' ... ' && $1 != -* ]] || die "unknown option $1"
			words+=("$1")
			;;
		esac
		shift
	done
}

# choose NAME... fails if a word is none of the names. Without words, it takes all names.
choose() {
	local word
	for word in "${words[@]}"; do
		[[ " $* " == *" $word "* ]] || die "unknown name $word; there are $*"
	done
	((${#words[@]})) || words=("$@")
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
