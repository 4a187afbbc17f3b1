//! Call sites: return addresses and static tags.

use core::ffi::{CStr, c_char};

use kmem_layout::site::site_kind;

use super::Names;
use crate::prng::mix;

/// A tag compiled into a program: one per call site, in the ELF section [`SECTION`] of its object.
/// It is `struct kmem_alloc_tag` of `kmem.h` (the kernel's `struct codetag`).
///
/// # Invariants
/// Each name is null or a C string that lives as long as the tag.
#[repr(C)]
#[derive(Debug)]
pub struct StaticTag {
    /// Name of the module; null for the name that the tag is registered with.
    pub module: *const c_char,
    /// Source file.
    pub file: *const c_char,
    /// Function, or the name of a scope.
    pub function: *const c_char,
    /// Line in the file.
    pub line: u32,
    /// Reserved, zero.
    pub flags: u32,
}

// SAFETY: a tag is never written, and its strings are constants.
unsafe impl Sync for StaticTag {}

/// The ELF section of static tags. The name is a C identifier, so that linkers mark its ends.
pub const SECTION: &str = "kmem_alloc_tags";

impl StaticTag {
    /// A tag of the main program, with constants for names.
    pub const fn new(file: &'static CStr, function: &'static CStr, line: u32) -> Self {
        Self {
            module: core::ptr::null(),
            file: file.as_ptr(),
            function: function.as_ptr(),
            line,
            flags: 0,
        }
    }
}

/// Set in the address of a static tag; no return address has it.
const STATIC: usize = 1 << 49;
/// Set in the address of an instruction of an interpreter. Static tags have even addresses, and so
/// have these instructions.
pub(super) const FRAME: usize = STATIC | 1;
/// The bits of an address that a key has. A kernel's addresses are those of the upper half, where
/// all bits above are those of the highest one.
const ADDRESS: usize = (1 << 48) - 1;

/// The bits of an address for a key: all of them on Linux, where no address of a program has more.
#[inline(always)]
pub(crate) const fn packed(address: usize) -> usize {
    if cfg!(kmem_linux) { address } else { address & ADDRESS }
}

/// The address of [`packed`] bits.
const fn unpacked(bits: usize) -> usize {
    if cfg!(kmem_linux) { bits } else { ((bits << 16) as isize >> 16) as usize }
}

/// A call site: a return address, or the address of a static tag with a mark.
///
/// # Invariants
/// An address with the mark is that of a static tag that is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallSite {
    /// The address, with bit 49 set for a static tag. With bit 0, too, it is that of an
    /// interpreter's instruction. At least that of [`Self::NOBODY`].
    pub(crate) address: usize,
    /// Address of the call's record on the stack: the caller's frame pointer, then the return
    /// address. 0 if unknown. It need not be valid.
    pub(crate) frame: usize,
}

impl CallSite {
    /// No call site. No return address has this value. Unlike those below, it never looks cached.
    pub const NOBODY: Self = Self { address: 4, frame: 0 };

    /// Address of a call site on a thread that runs an interpreter, in other code than the
    /// interpreter's own. It never looks cached.
    pub(crate) const BELOW_FRAME: usize = FRAME | Self::NOBODY.address;

    /// A static tag.
    #[inline(always)]
    pub fn tagged(tag: &'static StaticTag) -> Self {
        // SAFETY: a `'static` tag is valid until the program ends.
        unsafe { Self::tagged_by(tag) }
    }

    /// A static tag that lives as long as its object is loaded.
    ///
    /// # Safety
    /// `tag` is valid until it is unregistered.
    #[inline(always)]
    pub unsafe fn tagged_by(tag: *const StaticTag) -> Self {
        // INVARIANT: the tag is loaded until it is unregistered, by the contract.
        Self { address: packed(tag as usize) | STATIC, frame: 0 }
    }

    /// Returns whether it is on a thread that runs an interpreter.
    pub(super) fn is_in_frame(self) -> bool {
        self.address & FRAME == FRAME
    }

    /// The static tag, if it is one.
    pub(crate) fn static_tag(self) -> Option<*const StaticTag> {
        (self.address & FRAME == STATIC)
            .then_some(unpacked(self.address & !STATIC) as *const StaticTag)
    }
}

/// The key of a search in the index.
///
/// Each kind of key writes all fields, so this is no enum. The compiler may read a field before it
/// knows the kind. Memcheck reports a branch on memory that was never written.
#[derive(Clone, Copy)]
pub(super) struct Key<'a> {
    /// One of [`site_kind`].
    pub(super) kind: u32,
    /// The return address, the address of the static tag, or the first of the frames.
    pub(super) address: usize,
    /// Return addresses of a chain, innermost first; empty for the other kinds.
    pub(super) frames: &'a [usize],
    /// Number of frames at the start that are in wrappers. It follows from the frames.
    pub(super) wrappers: usize,
    /// Number of those up to the last one in a wrapper that was chosen.
    pub(super) chosen: usize,
    /// The names of an interpreter's line; empty for the other kinds.
    pub(super) names: &'a Names<'a>,
}

impl<'a> Key<'a> {
    const NONE: Self =
        Self { kind: 0, address: 0, frames: &[], wrappers: 0, chosen: 0, names: &Names::NONE };

    /// A return address.
    pub(super) fn caller(ret: usize) -> Self {
        Self { kind: site_kind::CALLER, address: ret, ..Self::NONE }
    }

    /// The address of a static tag.
    pub(super) fn tag(tag: *const StaticTag) -> Self {
        Self { kind: site_kind::STATIC, address: tag as usize, ..Self::NONE }
    }

    /// Return addresses, innermost first.
    pub(super) fn chain(frames: &'a [usize], wrappers: usize, chosen: usize) -> Self {
        let address = frames.first().map_or(0, |&ret| ret);
        Self { kind: site_kind::CHAIN, address, frames, wrappers, chosen, ..Self::NONE }
    }

    /// A line of an interpreter. Its address is a hash of the names.
    pub(super) fn line(names: &'a Names<'a>) -> Self {
        let hash = |hash, text: &[u8]| text.iter().fold(hash, |hash, &b| mix(hash, u64::from(b)));
        let texts = [names.module, names.file, names.function];
        let address = texts.into_iter().fold(u64::from(names.line), hash);
        Self { kind: site_kind::LINE, address: address as usize | 1, names, ..Self::NONE }
    }

    /// The static tag, if it is one.
    pub(super) fn static_tag(self) -> Option<*const StaticTag> {
        (self.kind == site_kind::STATIC).then_some(self.address as *const StaticTag)
    }

    /// Where a search in the index begins, and where it goes on after [`BESIDE`] slots. Sites of
    /// calls that are near to each other begin near, so that a short program touches few pages of
    /// the index. Where too many do, the others lie anywhere.
    pub(super) fn places(self) -> [usize; 2] {
        let seed = u64::from(self.kind);
        let hash = if self.kind == site_kind::CHAIN {
            self.frames.iter().fold(seed, |hash, &ret| mix(hash, ret as u64))
        } else {
            mix(seed, self.address as u64)
        };
        let hash = (hash >> 20) as usize;
        let near = match self.frames {
            [] => self.address / NEAR + hash % SPREAD,
            // Few chains through wrappers have an outermost call in common, but many others do.
            [.., last] if self.wrappers + 1 == self.frames.len() => last / NEAR + hash % SPREAD,
            _ => hash,
        };
        [near, hash]
    }
}

/// Bytes of code for a slot of the index, and slots among which the sites of as much code spread.
const NEAR: usize = 64;
const SPREAD: usize = 64;
/// Slots from there on that a search looks at before it goes on elsewhere.
pub(super) const BESIDE: usize = 64;

/// Most bytes of a name that are kept.
const MAX_NAME: usize = 1024;

/// The bytes of a C string; the last [`MAX_NAME`] bytes of a longer one, none for null.
///
/// # Safety
/// `text` is null or a C string that stays valid for `'a`.
pub(super) unsafe fn bytes<'a>(text: *const c_char) -> &'a [u8] {
    if text.is_null() {
        return &[];
    }
    // SAFETY: `text` is not null, so it is a C string.
    let bytes = unsafe { CStr::from_ptr(text) }.to_bytes();
    &bytes[bytes.len().saturating_sub(MAX_NAME)..]
}
