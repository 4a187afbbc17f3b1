//! Where memory came from: what stands for a tag, for people.

use std::sync::Arc;

use kmem::root::{TAG_FIRST_SITE, TAG_OTHER, TAG_UNTAGGED};

use crate::books::{Key, SiteRow, StaticTag, Table};
use crate::symbols::{Place, Symbols};

/// What a tag stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Allocated while profiling was off.
    NotTagged,
    /// Allocated when the site table was full.
    OtherSites,
    /// A tag without a site: the books were torn, or are damaged.
    Unknown(u32),
    /// A call site.
    Place(Place),
    /// A tag compiled into the program, or a scope.
    Static(Arc<StaticTag>),
    /// The allocator's own memory.
    Metadata(Table),
}

impl Origin {
    /// Names what a row's tag stands for; for a chain also its frames, innermost first.
    pub(super) fn resolve(row: &SiteRow, symbols: &mut Symbols<'_>) -> (Self, Vec<Arc<Place>>) {
        let plain = |origin| (origin, Vec::new());
        match (row.tag, &row.key) {
            (TAG_UNTAGGED, _) => plain(Self::NotTagged),
            (TAG_OTHER, _) => plain(Self::OtherSites),
            (tag, Key::None) => plain(Self::Unknown(tag)),
            (tag, _) if tag < TAG_FIRST_SITE => plain(Self::Unknown(tag)),
            (_, Key::Caller(addr)) => plain(Self::Place(symbols.resolve(*addr))),
            (_, Key::Static(tag)) => plain(Self::Static(Arc::clone(tag))),
            (tag, Key::Chain(addresses)) => {
                let frames: Vec<_> = addresses.iter().map(|&a| symbols.shared(a)).collect();
                let own = frames.iter().find(|frame| !frame.is_library());
                match own.or(frames.first()) {
                    Some(place) => (Self::Place(Place::clone(place)), frames),
                    None => plain(Self::Unknown(tag)),
                }
            }
        }
    }

    /// The function, or what stands for it.
    #[must_use]
    pub fn function(&self) -> &str {
        match self {
            Self::NotTagged => "not tagged",
            Self::OtherSites => "(other sites)",
            Self::Unknown(_) => "<unknown tag>",
            Self::Place(place) => place.function.as_deref().unwrap_or("?"),
            Self::Static(tag) if tag.function.is_empty() => "?",
            Self::Static(tag) => &tag.function,
            Self::Metadata(table) => table.name(),
        }
    }

    /// `file:line`, or `module+0xoffset`, or nothing.
    #[must_use]
    pub fn location(&self) -> String {
        match self {
            Self::NotTagged | Self::OtherSites => String::new(),
            Self::Metadata(_) => "(kmem)".to_owned(),
            Self::Unknown(tag) => format!("tag {tag}"),
            Self::Place(place) => place.location(),
            Self::Static(tag) => format!("{}:{}", tag.file, tag.line),
        }
    }

    /// The same for all tags that are shown as one row: kind, module, location, function.
    pub(super) fn key(&self) -> (bool, String, String, String) {
        let module = match self {
            // Call sites on one source line of a function are one; without a source, each is
            // its own.
            Self::Place(place) => place.module.clone(),
            Self::Static(tag) => tag.module.clone(),
            _ => String::new(),
        };
        let is_static = matches!(self, Self::Static(_));
        (is_static, module, self.location(), self.function().to_owned())
    }
}
