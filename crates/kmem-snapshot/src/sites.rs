//! Rows for people: books with names, merged where several tags are one place.

use std::cmp::Ordering;
use std::collections::HashMap;

use kmem::root::{TAG_FIRST_SITE, TAG_OTHER, TAG_UNTAGGED};
use serde::ser::{Serialize, SerializeStruct as _, Serializer};

use crate::books::{Pinned, SiteRow};
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
}

impl Origin {
    /// The function, or what stands for it.
    #[must_use]
    pub fn function(&self) -> &str {
        match self {
            Self::NotTagged => "not tagged",
            Self::OtherSites => "(other sites)",
            Self::Unknown(_) => "<unknown tag>",
            Self::Place(place) => place.function.as_deref().unwrap_or("?"),
        }
    }

    /// `file:line`, or `module+0xoffset`, or nothing.
    #[must_use]
    pub fn location(&self) -> String {
        match self {
            Self::NotTagged | Self::OtherSites => String::new(),
            Self::Unknown(tag) => format!("tag {tag}"),
            Self::Place(place) => place.location(),
        }
    }

    /// The same for all tags that are shown as one row.
    fn key(&self) -> (String, String, String) {
        match self {
            // Call sites on one source line of a function are one; without a source, each is
            // its own.
            Self::Place(place) => {
                (place.module.clone(), place.location(), self.function().to_owned())
            }
            other => (String::new(), other.location(), other.function().to_owned()),
        }
    }
}

/// One row: a place and what it holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Site {
    /// The place.
    pub origin: Origin,
    /// Live bytes.
    pub bytes: i64,
    /// Live objects.
    pub calls: u64,
    /// Tags that were merged into the row.
    pub tags: Vec<u32>,
    /// What its objects keep from being given back; none where nobody counted it.
    pub pinned: Option<Pinned>,
}

impl Site {
    /// Equal for two rows of one place.
    pub(crate) fn key(&self) -> impl Eq + std::hash::Hash + use<> {
        self.origin.key()
    }
}

/// By what rows are ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// Bytes, largest first.
    #[default]
    Size,
    /// Calls, most first.
    Calls,
    /// Function and place, alphabetically.
    Tag,
    /// Bytes kept from being given back, most first.
    Pinned,
}

impl Order {
    /// Compares two rows; the order is total, so that equal books print alike.
    #[must_use]
    pub fn compare(self, a: &Site, b: &Site) -> Ordering {
        let name = |s: &Site| (s.origin.function().to_owned(), s.origin.location());
        let by_name = || name(a).cmp(&name(b));
        match self {
            Self::Size => b.bytes.cmp(&a.bytes).then(b.calls.cmp(&a.calls)).then_with(by_name),
            Self::Calls => b.calls.cmp(&a.calls).then(b.bytes.cmp(&a.bytes)).then_with(by_name),
            Self::Tag => by_name(),
            Self::Pinned => b.pinned.cmp(&a.pinned).then_with(|| Self::Size.compare(a, b)),
        }
    }
}

/// Names rows and merges those of one place; in the order of their lowest tag.
pub fn resolve<'a>(
    rows: impl IntoIterator<Item = &'a SiteRow>,
    symbols: &mut Symbols<'_>,
) -> Vec<Site> {
    resolve_where(rows, symbols, |_| true)
}

/// The same for the rows whose origin is wanted.
pub fn resolve_where<'a>(
    rows: impl IntoIterator<Item = &'a SiteRow>,
    symbols: &mut Symbols<'_>,
    wanted: impl Fn(&Origin) -> bool,
) -> Vec<Site> {
    let mut sites: Vec<Site> = Vec::new();
    let mut known = HashMap::new();
    for row in rows {
        let origin = match row.tag {
            TAG_UNTAGGED => Origin::NotTagged,
            TAG_OTHER => Origin::OtherSites,
            tag if tag < TAG_FIRST_SITE || row.addr == 0 => Origin::Unknown(tag),
            _ => Origin::Place(symbols.resolve(row.addr)),
        };
        if !wanted(&origin) {
            continue;
        }
        let at = *known.entry(origin.key()).or_insert(sites.len());
        if let Some(site) = sites.get_mut(at) {
            site.bytes = site.bytes.saturating_add(row.bytes);
            site.calls = site.calls.saturating_add(row.calls);
            site.tags.push(row.tag);
        } else {
            let tags = vec![row.tag];
            sites.push(Site { origin, bytes: row.bytes, calls: row.calls, tags, pinned: None });
        }
    }
    sites
}

impl Serialize for Site {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = serializer.serialize_struct("Site", 11)?;
        out.serialize_field("bytes", &self.bytes)?;
        out.serialize_field("calls", &self.calls)?;
        let kind = match &self.origin {
            Origin::NotTagged => "not_tagged",
            Origin::OtherSites => "other_sites",
            Origin::Unknown(_) => "unknown",
            Origin::Place(_) => "caller",
        };
        out.serialize_field("kind", kind)?;
        let place = match &self.origin {
            Origin::Place(place) => Some(place),
            _ => None,
        };
        let source = place.and_then(|p| p.source.as_ref());
        out.serialize_field("function", &place.and_then(|p| p.function.as_ref()))?;
        out.serialize_field("file", &source.map(|s| &s.0))?;
        out.serialize_field("line", &source.map(|s| s.1))?;
        let module = place.map(|p| p.module.as_str()).filter(|m| !m.is_empty());
        out.serialize_field("module", &module)?;
        out.serialize_field("offset", &place.map(|p| p.offset))?;
        out.serialize_field("tags", &self.tags)?;
        out.serialize_field("pinned", &self.pinned.map(|p| p.pinned))?;
        out.serialize_field("sole", &self.pinned.map(|p| p.sole))?;
        out.end()
    }
}
