//! What names a call site, and how a caller passes it on.

use crate::units::{Effort, Gfp, ObjcgId};
use core::ffi::{CStr, c_char};

/// A tag compiled into a program: one per call site, in the ELF section [`SECTION`] of its object
/// (`struct kmem_alloc_tag` of `kmem.h`; the kernel's `struct codetag`).
#[repr(C)]
#[derive(Debug)]
pub struct StaticTag {
    /// Name of the module; null: that of the object the tag is registered with.
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

// SAFETY: never written, and the strings are constants.
unsafe impl Sync for StaticTag {}

/// The ELF section that static tags lie in, as C sees it.
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

// A key is `objcg:14 | static:1 | nofail:1 | address:48`. The cache of call sites looks at the address
// only, so a group costs nothing there.

/// Set in the key of a static tag; no address has it.
const STATIC: usize = 1 << 49;
/// Set where a request must not be refused for its group's sake.
const NOFAIL: usize = 1 << 48;
// What a caller says of its request is in bits that no frame pointer has.

/// Set where a failure is not reported.
const QUIET: usize = 1;
/// Set for [`Effort::Retry`].
const RETRY: usize = 1 << 62;
/// Set for [`Effort::Endless`].
const ENDLESS: usize = 1 << 63;
/// All of these.
const SAID: usize = QUIET | RETRY | ENDLESS;

/// Lowest bit of the group.
const GROUP_SHIFT: u32 = usize::BITS - ObjcgId::BITS;
/// The group's bits.
pub(super) const GROUP: usize = !0 << GROUP_SHIFT;
/// What a group has in its place.
pub(super) const fn group_bits(objcg: ObjcgId) -> usize {
    (objcg.0 as usize) << GROUP_SHIFT
}

/// The group in a key.
#[inline(always)]
pub const fn objcg(key: usize) -> ObjcgId {
    ObjcgId((key >> GROUP_SHIFT) as u32)
}

/// Who asks for memory: a call site, where its frame is, and the group that pays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// A return address, or a static tag's address with a mark; [`Caller::NOBODY`]'s. Not 0 or 1.
    /// Above the address the group.
    pub key: usize,
    /// The caller's frame pointer, 0 if unknown; only looked at where callers are told apart. With
    /// what the caller says of its request.
    frame: usize,
}

impl Caller {
    /// The call that returns to `ret`.
    #[inline(always)]
    pub const fn at(ret: usize) -> Self {
        Self { key: ret, frame: 0 }
    }

    /// The same for a key, with what may be its frame pointer.
    #[inline(always)]
    pub const fn in_frame(key: usize, frame: usize) -> Self {
        Self { key, frame: frame & !SAID }
    }

    /// What may be the caller's frame pointer.
    pub(super) const fn frame(self) -> usize {
        self.frame & !SAID
    }

    /// A static tag.
    #[inline(always)]
    pub fn tagged(tag: &'static StaticTag) -> Self {
        Self::at(tag as *const StaticTag as usize | STATIC)
    }

    /// The same for a tag that lives as long as its object is loaded.
    ///
    /// # Safety
    /// `tag` is valid until it is unregistered.
    #[inline(always)]
    pub unsafe fn tagged_by(tag: *const StaticTag) -> Self {
        Self::at(tag as usize | STATIC)
    }

    /// The same caller, who can do without: that there is no memory is not reported.
    #[inline(always)]
    pub const fn quietly(self) -> Self {
        Self { key: self.key, frame: self.frame | QUIET }
    }

    /// The same caller for a request with these flags.
    #[inline(always)]
    pub const fn with(self, gfp: Gfp) -> Self {
        let caller = if gfp.has(Gfp::UNACCOUNTED) { self.charged_to(ObjcgId::ROOT) } else { self };
        let caller = if gfp.has(Gfp::NOWARN) { caller.quietly() } else { caller };
        let caller = if gfp.has(Gfp::NOFAIL) { caller.nofail() } else { caller };
        let effort = match gfp.effort() {
            Effort::Once => 0,
            Effort::Retry => RETRY,
            Effort::Endless => ENDLESS,
        };
        Self { key: caller.key, frame: caller.frame | effort }
    }

    /// How hard to try for it.
    #[inline]
    pub const fn effort(self) -> Effort {
        if self.frame & ENDLESS != 0 {
            Effort::Endless
        } else if self.frame & RETRY != 0 {
            Effort::Retry
        } else {
            Effort::Once
        }
    }

    /// The same caller, who can do with less: it is tried once, and a failure is not reported.
    pub const fn once(self) -> Self {
        Self { key: self.key, frame: self.frame() | QUIET }
    }

    /// The same caller in the group of the thread.
    #[inline(always)]
    pub fn here(self) -> Self {
        Self { key: super::scope::grouped(self.key), frame: self.frame }
    }

    /// The same caller, and another group pays.
    #[inline(always)]
    pub const fn charged_to(self, objcg: ObjcgId) -> Self {
        Self { key: self.key & !GROUP | group_bits(objcg), frame: self.frame }
    }

    /// The group that pays.
    #[inline(always)]
    pub const fn objcg(self) -> ObjcgId {
        objcg(self.key)
    }

    /// The same caller, who cannot do without: its group goes above its `max` rather than refuse.
    #[inline(always)]
    pub const fn nofail(self) -> Self {
        Self { key: self.key | NOFAIL, frame: self.frame }
    }

    /// Whether it said so.
    pub const fn is_nofail(self) -> bool {
        self.key & NOFAIL != 0
    }

    /// The same caller without what it says of groups.
    pub(super) const fn site(self) -> Self {
        Self { key: self.key & !(GROUP | NOFAIL), frame: self.frame }
    }

    /// Whether it said so.
    pub const fn is_quiet(self) -> bool {
        self.frame & QUIET != 0
    }

    /// Nobody: the allocation goes without a tag. No return address is like this, and unlike 0 and
    /// 1 it never looks as if it were cached.
    pub const NOBODY: Self = Self { key: 2, frame: 0 };

    /// Nobody, in a call that returns to `ret`.
    #[inline(always)]
    pub const fn nobody_at(ret: usize) -> Self {
        Self { key: Self::NOBODY.key, frame: ret & !SAID }
    }

    /// What tells the places of calls apart: a key, or a return address of nobody's.
    pub(crate) const fn place(self) -> usize {
        let key = self.site().key;
        if key == Self::NOBODY.key { self.frame() } else { key }
    }

    /// The static tag, if it is one.
    pub(super) fn static_tag(self) -> Option<*const StaticTag> {
        (self.key & STATIC != 0).then_some((self.key & !STATIC) as *const StaticTag)
    }
}

/// What a site is found by.
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

/// The bytes of a C string, its end if it is too long.
///
/// # Safety
/// Null or a C string.
pub(super) unsafe fn bytes<'a>(text: *const c_char) -> &'a [u8] {
    if text.is_null() {
        return &[];
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { CStr::from_ptr(text) }.to_bytes();
    &bytes[bytes.len().saturating_sub(MAX_NAME)..]
}
