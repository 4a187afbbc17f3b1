//! Rows as call stacks, outermost call first.
//!
//! A row without a chain is a stack of one frame. Where groups are told apart, the group is the
//! outermost frame. Rows can also be stacks by their places in the source: module, directory, file.

mod tree;

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};

pub use tree::{Line, Node, Tree};

use crate::blackbox::Counts;
use crate::escape::printable;
use crate::sites::{Order, Origin, Site};
use crate::symbols::Place;

/// One frame of a stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame<'a> {
    /// A call.
    Place(&'a Place),
    /// A static tag, or memory without a call site.
    Other(&'a Origin),
    /// The group that is charged, by its path; outside of all calls.
    Group(&'a str),
    /// A module, a directory or a file, in stacks by source.
    Part(&'a str),
}

impl<'a> Frame<'a> {
    fn of(origin: &'a Origin) -> Self {
        match origin {
            Origin::Place(place) => Self::Place(place),
            other => Self::Other(other),
        }
    }

    /// Function, or a name for a frame without one.
    #[must_use]
    pub fn function(self) -> &'a str {
        match self {
            Self::Place(place) => place.function.as_deref().unwrap_or("?"),
            Self::Other(origin) => origin.function(),
            Self::Group(name) | Self::Part(name) => name,
        }
    }

    /// Function, or `module+0xoffset` without one.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Place(place) => place.function.clone().unwrap_or_else(|| place.in_module()),
            Self::Other(origin) => origin.function().to_owned(),
            Self::Group(name) | Self::Part(name) => name.to_owned(),
        }
    }

    /// `file:line`, or `module+0xoffset`, or nothing.
    #[must_use]
    pub fn location(self) -> String {
        match self {
            Self::Place(place) => place.location(),
            Self::Other(origin) => origin.location(),
            Self::Group(_) | Self::Part(_) => String::new(),
        }
    }

    /// Address of the call in its process.
    #[must_use]
    pub fn address(self) -> Option<u64> {
        match self {
            Self::Place(place) => Some(place.address).filter(|&address| address != 0),
            Self::Other(_) | Self::Group(_) | Self::Part(_) => None,
        }
    }

    /// Name of the frame in collapsed stacks: without semicolons, white space and control
    /// characters, and never empty.
    pub(crate) fn word(self) -> String {
        let name = self.name().replace(", ", ",");
        let safe = |c: char| match c {
            ';' => ':',
            c if c.is_whitespace() => '_',
            c => c,
        };
        let name: String = printable(&name).chars().map(safe).collect();
        if name.is_empty() { "?".to_owned() } else { name }
    }

    /// Source file and line.
    #[must_use]
    pub fn source(self) -> Option<(&'a str, u32)> {
        match self {
            Self::Place(place) => place.source.as_ref().map(|(file, line)| (file.as_str(), *line)),
            Self::Other(Origin::Static(tag)) => Some((&tag.file, tag.line)),
            Self::Other(_) | Self::Group(_) | Self::Part(_) => None,
        }
    }

    fn module(self) -> &'a str {
        match self {
            Self::Place(place) => &place.module,
            Self::Other(Origin::Static(tag)) => &tag.module,
            Self::Other(_) | Self::Group(_) | Self::Part(_) => "",
        }
    }

    fn compare(self, other: Self) -> Ordering {
        self.function()
            .cmp(other.function())
            .then_with(|| self.location().cmp(&other.location()))
            .then_with(|| self.module().cmp(other.module()))
    }
}

/// One distinct stack, with the live objects that were allocated through it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stack {
    /// Indexes into [`Stacks::frames`], outermost first; never empty.
    pub frames: Vec<usize>,
    /// Live bytes.
    pub bytes: i64,
    /// Live objects, modulo 2^64: a kernel writes -1 as 2^64 - 1.
    pub calls: u64,
    /// Allocations and frees since the start; none where they are not known.
    pub counts: Option<Counts>,
}

/// Key by which equal frames are joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// Function, line and module, as for rows.
    Place,
    /// Name in collapsed stacks.
    Name,
    /// Address in the process, where it is known.
    Address,
}

/// Distinct stacks over distinct frames.
///
/// ```
/// use kmem_snapshot::sites::{Origin, Site};
/// use kmem_snapshot::stacks::{By, Stacks};
///
/// let rows = [Site { bytes: 64, calls: 1, ..Site::new(Origin::NotTagged) }];
/// let stacks = Stacks::of(&rows, By::Name);
/// assert_eq!((stacks.frames.len(), stacks.stacks[0].bytes), (1, 64));
/// ```
#[derive(Debug, Clone, Default)]
pub struct Stacks<'a> {
    /// The distinct frames.
    pub frames: Vec<Frame<'a>>,
    /// The distinct stacks, in the order of the rows.
    pub stacks: Vec<Stack>,
}

impl<'a> Stacks<'a> {
    /// Builds the stacks of all rows. Their sizes add up to those of the rows.
    #[must_use]
    pub fn of(sites: &'a [Site], by: By) -> Self {
        Self::counted(sites, by, |_| None)
    }

    /// Builds the stacks of all rows, with what `counts` knows of their tags.
    #[must_use]
    pub fn counted(sites: &'a [Site], by: By, counts: impl Fn(&[u32]) -> Option<Counts>) -> Self {
        let mut this = Self::default();
        let mut numbers = Numbers::new(by);
        let mut known = HashMap::new();
        for site in sites {
            let (mut bytes, mut calls) = (site.bytes, site.calls);
            let group = site.group.as_deref().map(Frame::Group);
            let outermost = group.map(|frame| numbers.of(frame, &mut this.frames));
            for chain in &site.chains {
                let mut frames = Vec::with_capacity(chain.frames.len() + 1);
                frames.extend(outermost);
                for place in chain.frames.iter().rev() {
                    frames.push(numbers.of(Frame::Place(place), &mut this.frames));
                }
                bytes = bytes.saturating_sub(chain.bytes);
                calls = calls.wrapping_sub(chain.calls);
                let counts = counts(&[chain.tag]);
                let (bytes, calls) = (chain.bytes, chain.calls);
                this.add(&mut known, Stack { frames, bytes, calls, counts });
            }
            let of_chains: HashSet<u32> = site.chains.iter().map(|chain| chain.tag).collect();
            let rest = site.tags.iter().copied().filter(|tag| !of_chains.contains(tag));
            let counts = counts(&rest.collect::<Vec<_>>());
            if bytes != 0 || calls != 0 || counts.is_some_and(|of| of != Counts::default()) {
                let frame = numbers.of(Frame::of(&site.origin), &mut this.frames);
                let frames = outermost.into_iter().chain([frame]).collect();
                this.add(&mut known, Stack { frames, bytes, calls, counts });
            }
        }
        this
    }

    /// Builds a stack of each row by its place in the source. Its frames are the module, the
    /// directory, the file and the call, as far as they are known. `modules` has the module of each
    /// row.
    #[must_use]
    pub fn by_source(sites: &'a [Site], modules: &'a [String]) -> Self {
        let mut this = Self::default();
        let mut numbers = Numbers::new(By::Place);
        let mut known = HashMap::new();
        for (site, module) in sites.iter().zip(modules) {
            let call = Frame::of(&site.origin);
            let file = call.source().map(|(file, _)| file).filter(|file| !file.is_empty());
            let (directory, name) = match file.map(|file| (file, file.rsplit_once('/'))) {
                None => (None, None),
                Some((file, None)) => (None, Some(file)),
                Some((_, Some((directory, name)))) => {
                    (Some(directory).filter(|at| !at.is_empty()), Some(name))
                }
            };
            let parts = [Some(module.as_str()), directory, name].into_iter().flatten();
            let frames = site.group.as_deref().map(Frame::Group).into_iter();
            let frames = frames.chain(parts.map(Frame::Part)).chain([call]);
            let frames = frames.map(|frame| numbers.of(frame, &mut this.frames)).collect();
            let (bytes, calls) = (site.bytes, site.calls);
            this.add(&mut known, Stack { frames, bytes, calls, counts: None });
        }
        this
    }

    fn add(&mut self, known: &mut HashMap<Vec<usize>, usize>, new: Stack) {
        if let Some(stack) = known.get(&new.frames).and_then(|&at| self.stacks.get_mut(at)) {
            stack.bytes = stack.bytes.saturating_add(new.bytes);
            stack.calls = stack.calls.wrapping_add(new.calls);
            if let (Some(sum), Some(counts)) = (&mut stack.counts, &new.counts) {
                sum.add(counts);
            }
            return;
        }
        known.insert(new.frames.clone(), self.stacks.len());
        self.stacks.push(new);
    }

    /// Sorts the stacks.
    pub fn sort(&mut self, order: Order) {
        let frames = &self.frames;
        let by_name = |a: &Stack, b: &Stack| {
            let (a, b) = (a.frames.iter(), b.frames.iter());
            let mut pairs = a.clone().zip(b.clone());
            let unequal = pairs.find_map(|(&a, &b)| {
                Some(frames[a].compare(frames[b])).filter(|order| order.is_ne())
            });
            unequal.unwrap_or_else(|| a.len().cmp(&b.len()))
        };
        self.stacks.sort_by(|a, b| match order {
            Order::Size | Order::Pinned => b.bytes.cmp(&a.bytes).then_with(|| by_name(a, b)),
            Order::Calls => {
                b.calls.cast_signed().cmp(&a.calls.cast_signed()).then_with(|| by_name(a, b))
            }
            Order::Tag => by_name(a, b),
        });
    }
}

/// Numbers distinct frames. Chains share places, so most places are known by their address in
/// memory and are not compared.
struct Numbers {
    by: By,
    of_place: HashMap<*const Place, usize>,
    of_name: HashMap<(String, String, String), usize>,
}

impl Numbers {
    fn new(by: By) -> Self {
        Self { by, of_place: HashMap::new(), of_name: HashMap::new() }
    }

    fn of<'a>(&mut self, frame: Frame<'a>, frames: &mut Vec<Frame<'a>>) -> usize {
        let place = match frame {
            Frame::Place(place) => Some(std::ptr::from_ref(place)),
            Frame::Other(_) | Frame::Group(_) | Frame::Part(_) => None,
        };
        if let Some(&number) = place.and_then(|place| self.of_place.get(&place)) {
            return number;
        }
        let name = match self.by {
            By::Place | By::Address => {
                let own = frame.address().filter(|_| self.by == By::Address);
                let location = match frame {
                    // No call is in a place of this name.
                    Frame::Part(_) => "/".to_owned(),
                    _ => own.map_or_else(|| frame.location(), |own| format!("{own:#x}")),
                };
                (frame.module().to_owned(), location, frame.function().to_owned())
            }
            By::Name => (frame.word(), String::new(), String::new()),
        };
        let number = *self.of_name.entry(name).or_insert_with(|| {
            frames.push(frame);
            frames.len() - 1
        });
        if let Some(place) = place {
            self.of_place.insert(place, number);
        }
        number
    }
}
