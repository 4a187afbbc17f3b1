//! Two guards over unsafe code. The number of unsafe blocks, functions and implementations of a
//! layer may only fall: `unsafe_code.golden` has the numbers. Every SAFETY comment must name the
//! clause that holds.

use kmem_testing::tree;
use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Display, Formatter, Result as Formatted};
use std::fs;
use std::ops::AddAssign;

const GOLDEN: &str = "crates/kmem-testing/tests/unsafe_code.golden";

/// Unsafe code of a layer, outside tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    /// `unsafe { .. }` and `unsafe extern { .. }`.
    blocks: usize,
    /// Definitions of `unsafe fn`, not types of function pointers.
    fns: usize,
    /// `unsafe impl` and `unsafe trait`.
    impls: usize,
}

impl Count {
    fn exceeds(self, other: Self) -> bool {
        self.blocks > other.blocks || self.fns > other.fns || self.impls > other.impls
    }
}

impl AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        self.blocks += other.blocks;
        self.fns += other.fns;
        self.impls += other.impls;
    }
}

impl Display for Count {
    fn fmt(&self, to: &mut Formatter<'_>) -> Formatted {
        write!(to, "{} {} {}", self.blocks, self.fns, self.impls)
    }
}

/// Numbers by layer.
type Counts = BTreeMap<String, Count>;

/// One file of Rust, counted.
#[derive(Default)]
struct Counted {
    count: Count,
    /// Modules in files of their own that exist for tests only, such as `model` of
    /// `#[cfg(test)] mod model;`.
    test_modules: Vec<String>,
}

impl Counted {
    fn of(text: &str) -> Self {
        let tokens: TokenStream = text.parse().expect("a file of Rust");
        let mut counted = Self::default();
        counted.add(tokens);
        counted
    }

    fn add(&mut self, tokens: TokenStream) {
        let tokens: Vec<_> = tokens.into_iter().collect();
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            let next = &tokens[at + 1..];
            match token {
                TokenTree::Punct(hash) if hash.as_char() == '#' => {
                    if is_test_attribute(next.first()) {
                        at += self.skip_item(next);
                    } else if attribute(next.first()).is_some() {
                        at += 1;
                    }
                }
                TokenTree::Ident(word) if word == "unsafe" => self.count_one(next),
                TokenTree::Group(group) => self.add(group.stream()),
                _ => {}
            }
            at += 1;
        }
    }

    /// Counts an `unsafe` by the tokens behind it. Bodies of macros are counted, too, so a `$` may
    /// follow.
    fn count_one(&mut self, next: &[TokenTree]) {
        let next: Vec<_> =
            next.iter().filter(|token| !matches!(token, TokenTree::Literal(_))).collect();
        let word = |at: usize| match next.get(at) {
            Some(TokenTree::Ident(word)) => word.to_string(),
            _ => String::new(),
        };
        let past_extern = usize::from(word(0) == "extern");
        let group = |at: usize| match next.get(at) {
            Some(TokenTree::Group(group)) => Some(group.delimiter()),
            _ => None,
        };
        match word(past_extern).as_str() {
            // Parameters instead of a name: the type of a pointer.
            "fn" if group(past_extern + 1) == Some(Delimiter::Parenthesis) => {}
            "fn" => self.count.fns += 1,
            "impl" | "trait" => self.count.impls += 1,
            // The keyword of `#[unsafe(no_mangle)]` is in an attribute, which is skipped.
            _ => self.count.blocks += 1,
        }
    }

    /// Returns the number of tokens of the item behind `#[cfg(test)]`, which the caller skips.
    fn skip_item(&mut self, tokens: &[TokenTree]) -> usize {
        let is_end = |token: &TokenTree| match token {
            TokenTree::Punct(end) => end.as_char() == ';',
            TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
            _ => false,
        };
        let len = tokens.iter().position(is_end).map_or(tokens.len(), |at| at + 1);
        let word = |token: &TokenTree| match token {
            TokenTree::Ident(word) => Some(word.to_string()),
            _ => None,
        };
        let mut words = tokens[..len].iter().filter_map(word);
        let kind = words.find(|word| !QUALIFIERS.contains(&word.as_str()));
        // The end of a field or an arm is less clear, so both are counted.
        if !kind.is_some_and(|kind| ITEMS.contains(&kind.as_str())) {
            return 0;
        }
        for words in tokens[..len].windows(3) {
            if let [TokenTree::Ident(word), TokenTree::Ident(name), TokenTree::Punct(end)] = words
                && word == "mod"
                && end.as_char() == ';'
            {
                self.test_modules.push(name.to_string());
            }
        }
        len
    }
}

/// Words in front of the keyword of an item.
const QUALIFIERS: &[&str] = &["pub", "unsafe", "extern", "async"];

const ITEMS: &[&str] = &[
    "const",
    "enum",
    "fn",
    "impl",
    "macro_rules",
    "mod",
    "static",
    "struct",
    "trait",
    "type",
    "use",
];

fn attribute(token: Option<&TokenTree>) -> Option<&Group> {
    match token? {
        TokenTree::Group(group) if group.delimiter() == Delimiter::Bracket => Some(group),
        _ => None,
    }
}

/// Returns whether a token is `[cfg(test)]` or `[cfg(all(test, ..))]`.
fn is_test_attribute(token: Option<&TokenTree>) -> bool {
    let Some(group) = attribute(token) else { return false };
    let text = group.stream().to_string().replace(' ', "");
    let Some(condition) = text.strip_prefix("cfg(").and_then(|text| text.strip_suffix(')')) else {
        return false;
    };
    let all = condition.strip_prefix("all(").and_then(|text| text.strip_suffix(')'));
    all.unwrap_or(condition).split(',').any(|part| part == "test")
}

/// The layer of a source file: a room of the core, otherwise the crate. `None` for other files.
fn layer_of(path: &str) -> Option<String> {
    let parts: Vec<_> = path.split('/').collect();
    match parts[..] {
        ["crates", krate, "src", room, ..] if path.ends_with(".rs") => Some(match krate {
            "kmem-core" => format!("crates/{krate}/src/{}", room.trim_end_matches(".rs")),
            _ => format!("crates/{krate}/src"),
        }),
        _ => None,
    }
}

/// Folder in which the modules lie that a file declares.
fn folder_of_modules(path: &str) -> String {
    let (dir, name) = path.rsplit_once('/').expect("a file in a folder");
    match name {
        "mod.rs" | "lib.rs" | "main.rs" => dir.to_string(),
        _ => path.trim_end_matches(".rs").to_string(),
    }
}

/// Counts files, given by path and text.
fn count(files: &[(String, String)]) -> Counts {
    let counted: Vec<_> = files.iter().map(|(path, text)| (path, Counted::of(text))).collect();
    let mut tests = BTreeSet::new();
    for (path, counted) in &counted {
        let dir = folder_of_modules(path);
        for name in &counted.test_modules {
            tests.insert(format!("{dir}/{name}.rs"));
            tests.insert(format!("{dir}/{name}/"));
        }
    }
    let mut counts = Counts::new();
    for (path, counted) in counted {
        let layer = layer_of(path).expect("a source file");
        let is_test = tests.iter().any(|test| path.starts_with(test));
        *counts.entry(layer).or_default() += if is_test { Count::default() } else { counted.count };
    }
    counts
}

/// All source files of the workspace, by path and text.
fn sources() -> Vec<(String, String)> {
    let paths = tree::files().into_iter().filter(|path| layer_of(path).is_some());
    let sources: Vec<_> =
        paths.filter_map(|path| tree::read(&path).map(|text| (path, text))).collect();
    assert!(sources.len() > 200, "the sources were found");
    sources
}

fn parse(golden: &str) -> Counts {
    let entry = |line: &str| {
        let (layer, numbers) = line.split_once(' ').expect("a layer and numbers");
        let numbers: Vec<usize> =
            numbers.split(' ').map(|number| number.parse().expect("a number")).collect();
        let [blocks, fns, impls] = numbers[..] else { panic!("three numbers in `{line}`") };
        (layer.to_string(), Count { blocks, fns, impls })
    };
    golden.lines().filter(|line| !line.starts_with('#')).map(entry).collect()
}

/// Differences to the golden numbers. The first list needs fewer unsafe blocks; blessing writes the
/// second.
fn compare(counts: &Counts, golden: &Counts) -> (Vec<String>, Vec<String>) {
    let (mut grown, mut fallen) = (Vec::new(), Vec::new());
    for (layer, &count) in counts {
        match golden.get(layer) {
            Some(&old) if count.exceeds(old) => grown.push(format!(
                "unsafe code of {layer} grew from {old} to {count} (blocks, functions, impls): \
                 see `git diff {layer}*`; {GOLDEN} has the numbers, which may only fall"
            )),
            Some(&old) if count != old => {
                fallen.push(format!("{layer} fell from {old} to {count}"))
            }
            Some(_) => {}
            None => fallen.push(format!("{layer} is new: {count}")),
        }
    }
    let gone = golden.keys().filter(|layer| !counts.contains_key(*layer));
    fallen.extend(gone.map(|layer| format!("{layer} is gone")));
    (grown, fallen)
}

#[test]
fn unsafe_code_only_falls() {
    let counts = count(&sources());
    let (grown, fallen) = compare(&counts, &parse(&tree::read(GOLDEN).unwrap_or_default()));
    assert!(grown.is_empty(), "{}", grown.join("\n"));
    if std::env::var_os("KMEM_BLESS").is_some_and(|bless| bless == "1") {
        let mut text = "# layer, unsafe blocks, functions, impls; may only fall\n".to_string();
        text.extend(counts.iter().map(|(layer, count)| format!("{layer} {count}\n")));
        fs::write(tree::root().join(GOLDEN), text).expect("the golden file is written");
        return;
    }
    let hint = "run with KMEM_BLESS=1 to write the lower numbers";
    assert!(fallen.is_empty(), "{hint}:\n{}", fallen.join("\n"));
}

#[test]
fn every_room_of_the_core_is_counted() {
    let counts = count(&sources());
    let map = tree::read("ARCHITECTURE.md").expect("ARCHITECTURE.md is there");
    let list = map.split("<!-- layers -->").nth(1).expect("the list is marked");
    for row in list.lines().filter_map(|line| line.strip_prefix("| `")) {
        let room = row.split('`').next().expect("a name");
        let layer = format!("crates/kmem-core/src/{room}");
        assert!(counts.contains_key(&layer), "{layer} has no files");
    }
}

/// Texts that name no clause, without the period at their end.
const EMPTY: &[&str] = &[
    "",
    "as above",
    "as before",
    "by contract",
    "by the caller's contract",
    "by the contract",
    "dito",
    "ditto",
    "same as above",
    "same here",
    "see above",
    "the caller's contract",
    "the caller's promise",
    "the contract",
    "the same",
    "the same promise",
    "this function's contract",
];

/// SAFETY comments of a file that say nothing, by line and text.
fn empty_comments(text: &str) -> Vec<(usize, String)> {
    let comment = |line: &str| {
        let code = line.trim_start();
        code.strip_prefix("//").map(|text| text.trim_start_matches(['/', '!']).trim().to_string())
    };
    let lines: Vec<_> = text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some((_, first)) = line.split_once("// SAFETY:") else { continue };
        let mut text = first.trim().to_string();
        let next = lines[at + 1..].iter().map_while(|line| comment(line));
        for next in next.take_while(|next| !next.starts_with("SAFETY:")) {
            text = format!("{text} {next}");
        }
        let is_empty = |sentence: &str| {
            let sentence = sentence.trim().trim_end_matches('.').to_lowercase();
            EMPTY.contains(&sentence.as_str())
        };
        if text.split(". ").all(is_empty) {
            found.push((at + 1, text));
        }
    }
    found
}

#[test]
fn safety_comments_name_their_clause() {
    let mut wrong = Vec::new();
    for (path, text) in sources() {
        for (line, comment) in empty_comments(&text) {
            wrong.push(format!("{path}:{line}: `SAFETY: {comment}` names no clause that holds"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Tests of the guards on planted code.
mod planted {
    use super::*;

    const CODE: &str = r#"
        #![allow(unused)]
        unsafe impl Send for A {}
        unsafe trait Promise { unsafe fn keep(&self); }
        unsafe extern "C" { fn getpid() -> i32; }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn hook(call: unsafe extern "C" fn(usize), other: unsafe fn()) {
            // unsafe { }
            let text = "unsafe { }";
            unsafe { call(unsafe { one() }) }
        }
        macro_rules! make {
            ($name:ident, $body:block) => { unsafe fn $name() { unsafe { two() } unsafe $body } };
        }
        #[cfg(all(test, not(loom)))]
        #[path = "model.rs"]
        mod model;
        #[cfg(test)]
        mod tests { fn test() { unsafe { three() } } }
        #[cfg(any(test, loom))]
        fn here() { unsafe { four() } }
        struct Fields { #[cfg(test)] marks: u32, rest: Rest }
        fn there() { match 1 { #[cfg(test)] 0 => {} _ => unsafe { five() } } }
    "#;

    fn file(path: &str, text: &str) -> (String, String) {
        (path.to_string(), text.to_string())
    }

    #[test]
    fn keywords_are_told_apart() {
        let counted = Counted::of(CODE);
        assert_eq!(counted.count, Count { blocks: 7, fns: 3, impls: 2 });
        assert_eq!(counted.test_modules, ["model"]);
    }

    #[test]
    fn files_of_tests_do_not_count() {
        let one = "fn f() { unsafe { g() } }";
        let counts = count(&[
            file("crates/kmem-core/src/page/mod.rs", CODE),
            file("crates/kmem-core/src/page/model.rs", one),
            file("crates/kmem-core/src/page/model/steps.rs", one),
            file("crates/kmem-core/src/page/claim.rs", one),
            file("crates/kmem-core/src/task.rs", one),
            file("crates/kmem-cli/src/run/sys.rs", one),
        ]);
        let lines: Vec<_> =
            counts.iter().map(|(layer, count)| format!("{layer} {count}")).collect();
        let core = "crates/kmem-core/src";
        let expected = [
            "crates/kmem-cli/src 1 0 0".to_string(),
            format!("{core}/page 8 3 2"),
            format!("{core}/task 1 0 0"),
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn growth_is_told_from_fall() {
        let golden = parse("# comment\na 2 1 0\nb 2 1 0\nc 2 1 0\ngone 1 0 0\n");
        let counts = parse("a 1 2 0\nb 1 1 0\nc 2 1 0\nnew 5 0 0\n");
        let (grown, fallen) = compare(&counts, &golden);
        assert_eq!(grown.len(), 1, "fewer blocks do not pay for a function: {grown:?}");
        assert!(grown[0].contains("of a grew from 2 1 0 to 1 2 0"), "{grown:?}");
        assert_eq!(fallen, ["b fell from 2 1 0 to 1 1 0", "new is new: 5 0 0", "gone is gone"]);
    }

    #[test]
    fn comments_that_say_nothing_are_found() {
        let text = "
            // SAFETY: as above.
            // SAFETY: the caller's
            // promise. See above.

            // SAFETY: the caller's promise: `at` is the start of an object.
            let a = 1; // SAFETY: by contract
            // SAFETY: by the contract, `at` is the start of an object.
        ";
        let lines: Vec<_> = empty_comments(text).iter().map(|(line, _)| *line).collect();
        assert_eq!(lines, [2, 3, 7]);
    }
}
