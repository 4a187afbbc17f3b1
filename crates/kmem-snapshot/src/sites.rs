//! Rows for people: the books with names, merged where several tags are one place.
//!
//! A [`Filter`] chooses rows by group, module, file, function, line and size. All of its
//! conditions must hold; of the values of one condition any may. Texts are compared with the
//! [`Tag`] that allocinfo text shows for a row. They match as a whole, or by `*` (any text) and `?`
//! (any character). A row of the main executable has its module's name, too.

mod json;
mod mapped;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use kmem_layout::word::{TAG_FIRST_SITE, TAG_OTHER, TAG_UNTAGGED};
use wildmatch::WildMatch;

pub use json::Fields;
pub use mapped::{Mapped, large_arenas, resolve_mappings};

use crate::books::{Key, Pinned, SiteRow, StaticTag, Table};
use crate::symbols::{Place, Symbols};

/// Bytes that the kernel's own filters (Linux 7.3) keep of a text: the last ones.
const KERNEL_TEXT: usize = 63;

/// Origin of memory: the meaning of a tag, for people.
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
    /// Mapped memory without a call site.
    Mapped(Mapped),
}

/// File, line, module and function of a row, as allocinfo text shows them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag {
    /// Source file, or `module+0xoffset`, or `kmem` for reserved rows.
    pub file: String,
    /// Line; 0 for none.
    pub line: u32,
    /// Module; none for the main executable, or for the kernel itself.
    pub module: Option<String>,
    /// Function.
    pub function: String,
}

impl Origin {
    /// Names the tag of a row. For a chain it also returns the frames, innermost first.
    pub(crate) fn resolve(row: &SiteRow, symbols: &mut Symbols<'_>) -> (Self, Vec<Arc<Place>>) {
        let plain = |origin| (origin, Vec::new());
        match (row.tag, &row.key) {
            (TAG_UNTAGGED, _) => plain(Self::NotTagged),
            (TAG_OTHER, _) => plain(Self::OtherSites),
            (tag, Key::None) => plain(Self::Unknown(tag)),
            (tag, _) if tag < TAG_FIRST_SITE => plain(Self::Unknown(tag)),
            (_, Key::Caller(addr)) => plain(Self::Place(symbols.resolve(*addr))),
            (_, Key::Static(tag)) => plain(Self::Static(Arc::clone(tag))),
            (tag, Key::Chain { addresses, skip }) => {
                let frames: Vec<_> = addresses.iter().map(|&a| symbols.shared(a)).collect();
                let behind = || frames.iter().skip(*skip);
                let own = behind().find(|frame| !frame.is_library());
                // A chain may end within wrappers. The outermost one says most, but for those of
                // the C library, which are around all code.
                let outermost = || behind().rev().find(|frame| !frame.is_in_library());
                match own.or_else(outermost).or(frames.first()) {
                    Some(place) => (Self::Place(Place::clone(place)), frames),
                    None => plain(Self::Unknown(tag)),
                }
            }
        }
    }

    /// The return addresses and the place of a call whose callers are not told apart. None for all
    /// other rows.
    pub(crate) fn call_site(
        row: &SiteRow,
        symbols: &mut Symbols<'_>,
    ) -> Option<(Arc<[u64]>, Place)> {
        let addresses: Arc<[u64]> = match &row.key {
            Key::Caller(addr) => [*addr].into(),
            Key::Chain { addresses, .. } => Arc::clone(addresses),
            Key::None | Key::Static(_) => return None,
        };
        let last = symbols.resolve(*addresses.last()?);
        match Self::resolve(row, symbols) {
            (Self::Place(place), _) if place == last => Some((addresses, place)),
            _ => None,
        }
    }

    /// Function, or a name for memory without one.
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
            Self::Mapped(mapped) => mapped.name(),
        }
    }

    /// `file:line`, or `module+0xoffset`, or nothing.
    #[must_use]
    pub fn location(&self) -> String {
        match self {
            Self::NotTagged | Self::OtherSites => String::new(),
            Self::Metadata(_) => "(kmem)".to_owned(),
            Self::Mapped(mapped) => mapped.path().unwrap_or_default().to_owned(),
            Self::Unknown(tag) => format!("tag {tag}"),
            Self::Place(place) => place.location(),
            Self::Static(tag) => format!("{}:{}", tag.file, tag.line),
        }
    }

    /// The tag of an allocinfo line, by the table in [`allocinfo`](crate::allocinfo).
    #[must_use]
    pub fn tag(&self) -> Tag {
        let reserved =
            |function: String| Tag { file: "kmem".to_owned(), line: 0, module: None, function };
        match self {
            Self::NotTagged => reserved("not_tagged".to_owned()),
            Self::OtherSites => reserved("other_sites".to_owned()),
            Self::Metadata(table) => reserved(table.name().to_owned()),
            Self::Mapped(mapped) => mapped.tag(),
            Self::Unknown(tag) => reserved(format!("unknown_tag_{tag}")),
            Self::Static(tag) => Tag {
                file: tag.file.clone(),
                line: tag.line,
                module: (!tag.module.is_empty()).then(|| tag.module.clone()),
                function: tag.function.clone(),
            },
            Self::Place(place) => {
                let (file, line) = place.source.clone().unwrap_or_else(|| (place.in_module(), 0));
                Tag {
                    file,
                    line,
                    module: (!place.main && !place.module.is_empty()).then(|| place.module.clone()),
                    function: place.function.clone().unwrap_or_else(|| place.in_module()),
                }
            }
        }
    }

    /// Base name of the module, as filters have it. `main` is that of the main executable, which
    /// its own static tags do not have.
    #[must_use]
    pub fn module(&self, main: &str) -> Option<String> {
        match self {
            Self::Place(place) => Some(place.module.clone()),
            Self::Static(tag) if tag.module.is_empty() => Some(main.to_owned()),
            _ => self.tag().module,
        }
    }

    /// Equal for all tags that are shown as one row: kind, module, location, function.
    pub(crate) fn key(&self) -> (bool, String, String, String) {
        let module = match self {
            // Calls on one source line of a function are one row. Without a source, each call is
            // a row of its own.
            Self::Place(place) => place.module.clone(),
            Self::Static(tag) => tag.module.clone(),
            _ => String::new(),
        };
        let is_static = matches!(self, Self::Static(_));
        (is_static, module, self.location(), self.function().to_owned())
    }
}

/// One row: a place, and the live objects that were allocated there.
///
/// ```
/// use kmem_snapshot::sites::{Order, Origin, Site};
///
/// let small = Site { bytes: 64, calls: 1, ..Site::new(Origin::NotTagged) };
/// let large = Site { bytes: 4096, calls: 1, ..Site::new(Origin::OtherSites) };
/// let mut rows = [small, large.clone()];
/// rows.sort_by(|a, b| Order::Size.compare(a, b));
/// assert_eq!(rows[0], large);
/// assert_eq!(rows[0].origin.tag().function, "other_sites");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Site {
    /// The place.
    pub origin: Origin,
    /// Path of the group that is charged, where rows of different groups are told apart.
    pub group: Option<Arc<str>>,
    /// NUMA node of the memory, where rows of different nodes are told apart and it has one.
    pub node: Option<u32>,
    /// Live bytes.
    pub bytes: i64,
    /// Live objects.
    pub calls: u64,
    /// Tags that were merged into the row.
    pub tags: Vec<u32>,
    /// The tags among them that stand for a call and its callers.
    pub chains: Vec<Chain>,
    /// Bytes of address space, where the row is mapped memory. Then `bytes` counts what is in
    /// memory, and `calls` counts contiguous ranges.
    pub mapped: Option<u64>,
    /// Slabs that its objects keep from being given back; none where they are not counted.
    pub pinned: Option<Pinned>,
    /// False where the kernel could not count all allocations of the row.
    pub accurate: bool,
}

/// A call with its callers, and the live objects that were allocated through them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// The tag.
    pub tag: u32,
    /// Live bytes.
    pub bytes: i64,
    /// Live objects.
    pub calls: u64,
    /// Places of the calls, innermost first; never empty.
    pub frames: Vec<Arc<Place>>,
}

/// Live objects of a row that came through one of its callers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// Place of the caller's call.
    pub place: Arc<Place>,
    /// Live bytes.
    pub bytes: i64,
    /// Live objects.
    pub calls: u64,
}

impl Site {
    /// A row without objects.
    #[must_use]
    pub fn new(origin: Origin) -> Self {
        Self {
            origin,
            group: None,
            node: None,
            bytes: 0,
            calls: 0,
            tags: Vec::new(),
            chains: Vec::new(),
            mapped: None,
            pinned: None,
            accurate: true,
        }
    }

    /// The callers of the row's call, as far as they are told apart, the largest first. Library
    /// code between the two is passed over.
    #[must_use]
    pub fn callers(&self) -> Vec<Caller> {
        let mut callers: Vec<Caller> = Vec::new();
        let mut known = HashMap::new();
        let Origin::Place(own) = &self.origin else { return callers };
        for Chain { frames, bytes, calls, .. } in &self.chains {
            let behind = frames.iter().skip_while(|place| !place.is_same_place(own)).skip(1);
            let Some(place) = behind.clone().find(|place| !place.is_library()) else { continue };
            let key = (place.location(), place.function.as_deref());
            let at = *known.entry(key).or_insert(callers.len());
            if at == callers.len() {
                callers.push(Caller { place: Arc::clone(place), bytes: 0, calls: 0 });
            }
            let sum = &mut callers[at];
            sum.bytes = sum.bytes.saturating_add(*bytes);
            sum.calls = sum.calls.saturating_add(*calls);
        }
        callers.sort_by_key(|caller| std::cmp::Reverse(caller.bytes));
        callers
    }

    /// Equal for two rows of one place, one group and one node.
    pub(crate) fn key(&self) -> impl Eq + std::hash::Hash + use<> {
        (self.group.clone(), self.node, self.origin.key())
    }
}

/// Names rows and merges those of one place, in order of their lowest tag.
pub fn resolve<'a>(
    rows: impl IntoIterator<Item = &'a SiteRow>,
    symbols: &mut Symbols<'_>,
) -> Vec<Site> {
    resolve_where(rows, symbols, |_| true)
}

/// Names rows, keeps those with a wanted origin, and merges those of one place, in order of their
/// lowest tag.
pub fn resolve_where<'a>(
    rows: impl IntoIterator<Item = &'a SiteRow>,
    symbols: &mut Symbols<'_>,
    wanted: impl Fn(&Origin) -> bool,
) -> Vec<Site> {
    let mut sites: Vec<Site> = Vec::new();
    let mut known = HashMap::new();
    for row in rows {
        let (origin, frames) = Origin::resolve(row, symbols);
        if !wanted(&origin) {
            continue;
        }
        let at = *known.entry(origin.key()).or_insert(sites.len());
        if at == sites.len() {
            sites.push(Site::new(origin));
        }
        let site = &mut sites[at];
        site.bytes = site.bytes.saturating_add(row.bytes);
        site.calls = site.calls.saturating_add(row.calls);
        site.tags.push(row.tag);
        if !frames.is_empty() {
            let (tag, bytes, calls) = (row.tag, row.bytes, row.calls);
            site.chains.push(Chain { tag, bytes, calls, frames });
        }
    }
    sites
}

/// Live bytes and objects of some rows together. A sum of bytes stops at the largest number. A
/// sum of objects is modulo 2^64, because a kernel writes -1 as 2^64 - 1.
#[must_use]
pub fn total(sites: &[Site]) -> (i64, u64) {
    sites.iter().fold((0, 0), |(bytes, calls), site| {
        (site.bytes.saturating_add(bytes), site.calls.wrapping_add(calls))
    })
}

/// Live bytes and objects that one group itself holds, among some rows.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct GroupTotal {
    /// Path of the group.
    pub group: String,
    /// Live bytes.
    pub bytes: i64,
    /// Live objects.
    pub calls: u64,
}

/// Adds up the rows of each group, in order of path. Rows without a group are left out.
#[must_use]
pub fn by_group(sites: &[Site]) -> Vec<GroupTotal> {
    group_sums(sites.iter().filter_map(|of| Some((of.group.as_deref()?, of.bytes, of.calls))))
}

/// Adds up bytes and objects of paths of groups, in order of path.
pub(crate) fn group_sums<Path: Ord + Into<String>>(
    parts: impl IntoIterator<Item = (Path, i64, u64)>,
) -> Vec<GroupTotal> {
    let mut totals: BTreeMap<Path, (i64, u64)> = BTreeMap::new();
    for (path, bytes, calls) in parts {
        let sum = totals.entry(path).or_default();
        *sum = (sum.0.saturating_add(bytes), sum.1.saturating_add(calls));
    }
    let total = |(path, (bytes, calls)): (Path, _)| GroupTotal { group: path.into(), bytes, calls };
    totals.into_iter().map(total).collect()
}

/// Order of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// Most bytes first.
    #[default]
    Size,
    /// Most objects first.
    Calls,
    /// Function and place, alphabetically.
    Tag,
    /// Most pinned bytes first.
    Pinned,
}

impl Order {
    /// Compares two rows. The order is total, so that equal books print alike.
    #[must_use]
    pub fn compare(self, a: &Site, b: &Site) -> Ordering {
        let name = |s: &Site| {
            (s.origin.function().to_owned(), s.origin.location(), s.group.clone(), s.node)
        };
        let by_name = || name(a).cmp(&name(b));
        // A kernel writes -1 as 2^64 - 1.
        let by_calls = || b.calls.cast_signed().cmp(&a.calls.cast_signed());
        match self {
            Self::Size => b.bytes.cmp(&a.bytes).then_with(by_calls).then_with(by_name),
            Self::Calls => by_calls().then(b.bytes.cmp(&a.bytes)).then_with(by_name),
            Self::Tag => by_name(),
            Self::Pinned => b.pinned.cmp(&a.pinned).then_with(|| Self::Size.compare(a, b)),
        }
    }
}

/// A text to match names with: the name itself, or a glob for it.
///
/// ```
/// use kmem_snapshot::Pattern;
///
/// assert!(Pattern::new("*.c").matches("/src/main.c"));
/// assert!(!Pattern::new("main").matches("main2"));
/// ```
#[derive(Debug, Clone)]
pub struct Pattern {
    text: String,
    glob: WildMatch,
}

impl Pattern {
    /// A pattern from the text that a user typed.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self { text: text.to_owned(), glob: WildMatch::new(text) }
    }

    /// True when the name is the text, or the text is a glob for it. Also true when the text is
    /// the part of the name that a kernel keeps, so that filters made for a kernel work here.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        self.text == name
            || (self.text.len() == KERNEL_TEXT && name.ends_with(&self.text))
            || self.glob.matches(name)
    }
}

/// Conditions on rows; an empty one always holds.
///
/// ```
/// use kmem_snapshot::{Filter, Pattern};
///
/// let filter = Filter {
///     function: vec![Pattern::new("load"), Pattern::new("index_*")],
///     min: Some(1 << 20),
///     ..Filter::default()
/// };
/// assert!(filter.admits_size(2 << 20) && !filter.admits_size(4096));
/// ```
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Base name of the module, also of the main executable.
    pub module: Vec<Pattern>,
    /// Source file, or `module+0xoffset` without one.
    pub file: Vec<Pattern>,
    /// Function, or `module+0xoffset` without one.
    pub function: Vec<Pattern>,
    /// Line; 0 for rows without a source.
    pub line: Vec<u32>,
    /// Least live bytes.
    pub min: Option<i64>,
    /// Most live bytes.
    pub max: Option<i64>,
    /// Path of a group: only memory charged to it and to the groups below it.
    pub group: Option<String>,
}

impl Filter {
    /// True when a condition is set.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.names() || self.group.is_some() || self.min.is_some() || self.max.is_some()
    }

    /// True when a condition is set that [`Filter::admits`] checks.
    fn names(&self) -> bool {
        !(self.module.is_empty()
            && self.file.is_empty()
            && self.function.is_empty()
            && self.line.is_empty())
    }

    /// True when rows of this origin are wanted, whatever their size. `main` is the module name of
    /// the main executable, which its own static tags do not have.
    #[must_use]
    pub fn admits(&self, origin: &Origin, main: &str) -> bool {
        if !self.names() {
            return true;
        }
        self.admits_tag(origin.module(main).as_deref(), &origin.tag())
    }

    /// True when rows of this module and this tag are wanted, whatever their size.
    #[must_use]
    pub fn admits_tag(&self, module: Option<&str>, tag: &Tag) -> bool {
        let any = |patterns: &[Pattern], name: &str| {
            patterns.is_empty() || patterns.iter().any(|p| p.matches(name))
        };
        (self.line.is_empty() || self.line.contains(&tag.line))
            && any(&self.module, module.unwrap_or_default())
            && any(&self.file, &tag.file)
            && any(&self.function, &tag.function)
    }

    /// True when rows with this count of live bytes are wanted.
    #[must_use]
    pub fn admits_size(&self, bytes: i64) -> bool {
        (self.min.unwrap_or(i64::MIN)..=self.max.unwrap_or(i64::MAX)).contains(&bytes)
    }
}
