//! Filters: which rows are made at all.
//!
//! A filter has conditions on the group, the module, the file, the function, the line and the
//! size. All conditions must hold; of the values of one condition any may. Texts are compared with what
//! allocinfo text shows of a row, but a row of the main executable also has its module's name.
//! They match as a whole, or by `*` (any text) and `?` (any character).

use std::ops::RangeInclusive;

use wildmatch::WildMatch;

use crate::allocinfo::{Tag, tag_of_origin};
use crate::sites::Origin;

/// Bytes that the kernel's own filters (Linux 7.3) keep of a text: the last ones.
const KERNEL_TEXT: usize = 63;

/// A text to match.
#[derive(Debug, Clone)]
pub struct Pattern {
    text: String,
    glob: WildMatch,
}

impl Pattern {
    /// A pattern from the text a person typed.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self { text: text.to_owned(), glob: WildMatch::new(text) }
    }

    /// Whether a name matches: it is the text, the text is a glob for it, or the text is what a
    /// kernel keeps of it, so that a filter made for a kernel finds the same rows.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        self.text == name
            || (self.text.len() == KERNEL_TEXT && name.ends_with(&self.text))
            || self.glob.matches(name)
    }
}

/// Conditions on rows; those that are empty always hold.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Base name of the module, that of the main executable included.
    pub module: Vec<Pattern>,
    /// Source file, or what stands for it.
    pub file: Vec<Pattern>,
    /// Function, or what stands for it.
    pub function: Vec<Pattern>,
    /// Line; 0 for rows without a source.
    pub line: Vec<u32>,
    /// Least live bytes.
    pub min: Option<i64>,
    /// Most live bytes.
    pub max: Option<i64>,
    /// Path of a group: what it and those below it pay for.
    pub group: Option<String>,
}

impl Filter {
    /// Whether any condition is set.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.names() || self.group.is_some() || self.min.is_some() || self.max.is_some()
    }

    /// Whether there are conditions on what [`Filter::admits`] looks at.
    fn names(&self) -> bool {
        !(self.module.is_empty()
            && self.file.is_empty()
            && self.function.is_empty()
            && self.line.is_empty())
    }

    /// Whether rows of this origin are wanted, whatever they hold. `main` is the name of the main
    /// executable, which static tags of its own do not say.
    #[must_use]
    pub fn admits(&self, origin: &Origin, main: &str) -> bool {
        if !self.names() {
            return true;
        }
        let tag = tag_of_origin(origin);
        let module = match origin {
            Origin::Place(place) => Some(place.module.as_str()),
            Origin::Static(tag) if tag.module.is_empty() => Some(main),
            _ => tag.module.as_deref(),
        };
        self.admits_tag(module, &tag)
    }

    /// The same for a tag and its module.
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

    /// Whether a row with these live bytes is wanted.
    #[must_use]
    pub fn admits_size(&self, bytes: i64) -> bool {
        self.sizes().contains(&bytes)
    }

    fn sizes(&self) -> RangeInclusive<i64> {
        self.min.unwrap_or(i64::MIN)..=self.max.unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::books::StaticTag;
    use crate::symbols::Place;

    fn origin(module: &str, file: &str, line: u32, function: &str) -> Origin {
        Origin::Place(Place {
            module: module.into(),
            main: module == "app",
            offset: 0x10,
            function: Some(function.into()),
            source: Some((file.into(), line)),
        })
    }

    fn patterns(texts: &[&str]) -> Vec<Pattern> {
        texts.iter().map(|t| Pattern::new(t)).collect()
    }

    #[test]
    fn a_pattern_is_the_name_or_a_glob_for_it() {
        for (pattern, name, expected) in [
            ("main", "main", true),
            ("main", "main2", false),
            ("main", "Main", false),
            ("ma*", "main", true),
            ("m?in", "main", true),
            ("m?in", "min", false),
            ("*.c", "/src/deep/a.c", true),
            ("*", "", true),
            ("?", "", false),
            ("", "", true),
            ("", "x", false),
            ("operator*", "operator*", true),
            ("std::vector<char*>::f", "std::vector<char*>::f", true),
            ("[ab]", "a", false),
        ] {
            assert_eq!(Pattern::new(pattern).matches(name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn what_a_kernel_keeps_of_a_long_text_matches_it() {
        let long = format!("/{}/end.c", "d".repeat(100));
        let kept = &long[long.len() - 63..];
        assert!(Pattern::new(kept).matches(&long));
        assert!(!Pattern::new(&kept[1..]).matches(&long));
    }

    #[test]
    fn conditions_combine_by_and_and_values_by_or() {
        let app = origin("app", "/src/a.c", 7, "f");
        let library = origin("libx.so", "/src/b.c", 7, "g");
        let untagged = Origin::NotTagged;
        let own = Origin::Static(Arc::new(StaticTag {
            module: String::new(),
            file: "/src/a.c".into(),
            line: 9,
            function: "f".into(),
        }));
        let admitted = |filter: &Filter| {
            [&app, &library, &untagged, &own].map(|origin| filter.admits(origin, "app")).to_vec()
        };
        let none = Filter::default();
        assert_eq!((none.is_on(), admitted(&none)), (false, vec![true, true, true, true]));
        let both = Filter { function: patterns(&["f", "g"]), ..Filter::default() };
        assert_eq!((both.is_on(), admitted(&both)), (true, vec![true, true, false, true]));
        let module = Filter { module: patterns(&["app"]), ..both.clone() };
        assert_eq!(admitted(&module), [true, false, false, true]);
        let line = Filter { line: vec![8, 7], ..Filter::default() };
        assert_eq!(admitted(&line), [true, true, false, false]);
        let file = Filter { file: patterns(&["*/b.c"]), line: vec![8], ..Filter::default() };
        assert_eq!(admitted(&file), [false; 4]);
        let reserved = Filter { function: patterns(&["not_tagged"]), ..Filter::default() };
        assert_eq!(admitted(&reserved), [false, false, true, false]);
    }

    #[test]
    fn sizes_are_a_range_with_both_ends() {
        let filter = Filter { min: Some(10), max: Some(20), ..Filter::default() };
        assert!(filter.is_on());
        assert_eq!([9, 10, 20, 21].map(|b| filter.admits_size(b)), [false, true, true, false]);
        assert!(Filter::default().admits_size(i64::MIN));
    }
}
