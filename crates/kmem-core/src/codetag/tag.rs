//! Call sites: return addresses and static tags.

use core::ffi::{CStr, c_char};

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

/// A call site: a return address, or the address of a static tag with a mark.
///
/// # Invariants
/// An address with the mark is that of a static tag that is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallSite {
    /// The address, with bit 49 set for a static tag. Never 0 or 1.
    pub(crate) address: usize,
    /// The caller's frame pointer, 0 if unknown. It need not be valid.
    pub(crate) frame: usize,
}

impl CallSite {
    /// No call site. No return address has this value. Unlike 0 and 1, it never looks cached.
    pub const NOBODY: Self = Self { address: 2, frame: 0 };

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
        Self { address: tag as usize | STATIC, frame: 0 }
    }

    /// The static tag, if it is one.
    pub(crate) fn static_tag(self) -> Option<*const StaticTag> {
        (self.address & STATIC != 0).then_some((self.address & !STATIC) as *const StaticTag)
    }
}

/// The key of a search in the index.
#[derive(Clone, Copy)]
pub(super) enum Key<'a> {
    /// A return address.
    Return(usize),
    /// The address of a static tag.
    Static(*const StaticTag),
    /// Return addresses, innermost first.
    Chain(&'a [usize]),
}

impl Key<'_> {
    pub(super) fn hash(self) -> usize {
        let mix = |hash: u64, word: usize| {
            (hash ^ word as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
        };
        let hash = match self {
            Self::Return(ret) => mix(1, ret),
            Self::Static(tag) => mix(2, tag as usize),
            Self::Chain(frames) => frames.iter().fold(3, |hash, &ret| mix(hash, ret)),
        };
        (hash >> 20) as usize
    }
}

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
