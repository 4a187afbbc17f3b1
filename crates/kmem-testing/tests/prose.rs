//! A lint over the prose of the workspace: comments in Rust, C and shell, and Markdown.
//!
//! It checks the width of lines, the words that comments begin with, words that do not name their
//! actor, and the length of sentences. It covers every file, except those in [`NOT_YET`].

mod prose_text;

use kmem_testing::tree;
use prose_text::{Kind, Language, Paragraph};

/// Paths, or beginnings of paths, that the lint does not cover. Add one only while its text is
/// being rewritten.
const NOT_YET: &[&str] = &[];

/// Columns of a line.
const COLUMNS: usize = 100;

/// Words of a sentence.
const SENTENCE: usize = 25;

/// Words that a comment does not begin with: they need the text before, or hide the noun.
const OPENERS: &[&str] = &["What ", "Whether ", "The same ", "As above", "Same as", "So "];

/// Words with the advice to give.
const WORDS: &[(&str, &str)] = &[
    ("whoever", "name the actor"),
    ("nobody", "name the actor"),
    ("somebody", "name the actor"),
    ("anybody", "name the actor"),
    ("in vain", "say that it fails"),
    ("for good", "say until when"),
    ("one's hands", "say what holds it"),
    ("so many", "say the count"),
    ("at it", "say what is done concurrently"),
    ("take leave", "say what is unregistered"),
    ("takes leave", "say what is unregistered"),
    ("kids", "say credit"),
];

/// Findings in one file, as `path:line: rule`.
fn lint(path: &str, text: &str) -> Vec<String> {
    let Some(language) = Language::of(path) else { return Vec::new() };
    let mut found = Vec::new();
    for line in prose_text::long_lines(language, text, COLUMNS) {
        found.push((line, format!("more than {COLUMNS} columns")));
    }
    for paragraph in prose_text::paragraphs(language, text) {
        openers(&paragraph, &mut found);
        // A changelog's tables are records of their time.
        if !(paragraph.kind == Kind::Table && path == "CHANGELOG.md") {
            words(&paragraph, &mut found);
        }
        sentences(&paragraph, &mut found);
    }
    found.sort();
    found.into_iter().map(|(line, rule)| format!("{path}:{line}: {rule}")).collect()
}

fn openers(paragraph: &Paragraph, found: &mut Vec<(usize, String)>) {
    let covered = match paragraph.kind {
        Kind::Doc => true,
        Kind::Comment => paragraph.is_first,
        Kind::Page | Kind::Table | Kind::Heading => false,
    };
    let text = paragraph.text();
    let opener = OPENERS.iter().find(|opener| text.starts_with(**opener));
    if let Some(opener) = opener.filter(|_| covered) {
        found.push((paragraph.line_of(0), format!("begins with \"{}\"", opener.trim_end())));
    }
}

fn words(paragraph: &Paragraph, found: &mut Vec<(usize, String)>) {
    let text = paragraph.text().to_lowercase();
    for (word, advice) in WORDS {
        for (at, _) in text.match_indices(word) {
            let part = |c: char| c.is_alphanumeric() || c == '_';
            let inside = text[..at].ends_with(part) || text[at + word.len()..].starts_with(part);
            if !inside {
                let line = paragraph.line_of(text[..at].chars().count());
                found.push((line, format!("\"{word}\": {advice}")));
            }
        }
    }
}

fn sentences(paragraph: &Paragraph, found: &mut Vec<(usize, String)>) {
    if paragraph.kind == Kind::Table {
        return;
    }
    for (at, sentence) in prose_text::sentences(paragraph.text()) {
        let count = sentence.split_whitespace().filter(|word| word.contains(char::is_alphanumeric));
        let count = count.count();
        if count > SENTENCE {
            let rule = format!("a sentence of {count} words, more than {SENTENCE}");
            found.push((paragraph.line_of(at), rule));
        }
    }
}

#[test]
fn the_workspace_reads_well() {
    let covered = |path: &String| !NOT_YET.iter().any(|prefix| path.starts_with(prefix));
    let mut found = Vec::new();
    for path in tree::files().into_iter().filter(covered) {
        if let Some(text) = tree::read(&path) {
            found.extend(lint(&path, &text));
        }
    }
    assert!(found.is_empty(), "{} findings:\n{}", found.len(), found.join("\n"));
}

/// Tests of the lint on planted text.
mod planted {
    use super::*;

    fn lines(path: &str, text: &str, rule: &str) -> Vec<usize> {
        let line = |finding: &String| {
            let rest = finding.strip_prefix(path)?.strip_prefix(':')?;
            let (line, message) = rest.split_once(": ")?;
            message.contains(rule).then(|| line.parse().expect("a number"))
        };
        lint(path, text).iter().filter_map(line).collect()
    }

    #[test]
    fn good_prose_passes() {
        let text = "//! A page.\n\n/// Adds `so many` bytes.\nfn a() {} // Adds \"nobody\"s.\n";
        assert_eq!(lint("a.rs", &text.replace("\"nobody\"s", "bytes")), [""; 0]);
        assert_eq!(lint("a.txt", "What nobody reads.\n"), [""; 0]);
    }

    #[test]
    fn long_lines() {
        let long = "word ".repeat(21);
        let at = |path, text: &str| lines(path, text, "columns");
        assert_eq!(at("a.rs", &format!("\nlet a = \"{long}\";\n")), [2], "literals, too");
        assert_eq!(at("a.c", &long), [1]);
        assert_eq!(at("a.S", &long), [1]);
        assert_eq!(at("a.sh", &long), [1]);
        assert_eq!(at("a.rs", &format!("// {long} https://a.b/c")), [0; 0]);
        assert_eq!(at("a.rs", &"ü".repeat(100)), [0; 0], "characters, not bytes");
        let page = format!("{long}\n| {long} |\n```\n{long}\n```\n{long}\n");
        assert_eq!(at("a.md", &page), [1, 6]);
        let link = format!("[a]({})", "b".repeat(100));
        assert_eq!(at("a.md", &format!("{link}\n- {link}\n{long} {link}\n")), [3]);
    }

    #[test]
    fn openers_of_comments() {
        let at = |text: &str| lines("a.rs", text, "begins with");
        for opener in OPENERS {
            assert_eq!(at(&format!("\n/// {opener} x")), [2], "{opener}");
            assert_eq!(at(&format!("\n//! One.\n//!\n//! {opener} x")), [4], "{opener}");
            assert_eq!(at(&format!("let a = 1; // {opener} x")), [1], "{opener}");
            assert_eq!(at(&format!("    // {opener} x\n    // {opener} x")), [1], "{opener}");
            assert_eq!(at(&format!("// One.\n\n/* {opener} x */\n")), [3], "{opener}");
            assert_eq!(
                lines("a.h", &format!("/**\n * {opener} x\n */"), "begins"),
                [2],
                "{opener}"
            );
            assert_eq!(
                lines("a.sh", &format!("#!/bin/sh\n\n# {opener} x"), "begins"),
                [3],
                "{opener}"
            );
            assert_eq!(at(&format!("let a = \"// {opener} x\";")), [0; 0], "{opener}");
            assert_eq!(at(&format!("let a = r#\"\"\n// {opener} x\"#;")), [0; 0], "{opener}");
            assert_eq!(at(&format!("/// ```\n/// {opener} x\n/// ```")), [0; 0], "{opener}");
        }
        assert_eq!(at("let a = '\"'; // So x"), [1], "a character is no string");
        assert_eq!(at("fn a<'a>(b: &'a str) {} // So x"), [1], "a lifetime is no character");
    }

    #[test]
    fn words_that_name_no_actor() {
        for (word, _) in WORDS {
            let rule = format!("\"{word}\"");
            let at = |path, text: &str| lines(path, text, &rule);
            assert_eq!(at("a.rs", &format!("\n// It is {word}.")), [2]);
            assert_eq!(at("a.rs", &format!("/// It is\n/// {word}, too.")), [2]);
            assert_eq!(at("a.c", &format!("f(); /* {word} */")), [1]);
            assert_eq!(at("a.sh", &format!("f\n  # {word}")), [2]);
            assert_eq!(at("a.md", &format!("# A {word}\n\n- {word}\n\n| {word} |\n")), [1, 3, 5]);
            assert_eq!(at("CHANGELOG.md", &format!("{word}\n| {word} |\n")), [1]);
            assert_eq!(at("a.md", &format!("```\n{word}\n```\n`{word}`\n")), [0; 0]);
            assert_eq!(at("a.rs", &format!("/// x{word} {word}x `{word}`\n\"{word}\"")), [0; 0]);
        }
        let broken = "/// One thread waits in\n/// vain.";
        assert_eq!(lines("a.rs", broken, "in vain"), [1], "a line's end is a space");
    }

    #[test]
    fn long_sentences() {
        let at = |path, text: &str| lines(path, text, "a sentence of");
        let long = format!("{}end.", "Word ".repeat(SENTENCE));
        let fits = format!("{}end.", "Word ".repeat(SENTENCE - 1));
        assert_eq!(at("a.rs", &format!("/// One.\n/// {long}")), [2]);
        assert_eq!(at("a.h", &format!("/** {long} */")), [1]);
        assert_eq!(at("a.rs", &format!("/// {fits} {fits}")), [0; 0]);
        assert_eq!(at("a.rs", &format!("/// {fits}\n///\n/// {fits}")), [0; 0]);
        let code =
            format!("/*\n * One:\n *\n *\t{}\n *\t{}\n */", "a ".repeat(20), "b ".repeat(20));
        assert_eq!(at("a.h", &code), [0; 0], "an indented line stands alone");
        let errors = format!("/// `EINVAL`: {} ; `ENOMEM`: {}", "a ".repeat(20), "b ".repeat(20));
        assert_eq!(at("a.rs", &errors), [0; 0]);
        let includes = "#include <a>\n".repeat(SENTENCE + 1);
        assert_eq!(lines("a.sh", &includes, "a sentence of"), [0; 0], "C in a script");
        assert_eq!(lines("a.sh", &format!("# {long}"), "a sentence of"), [1]);
        let list = fits.replace("end.", "end");
        assert_eq!(at("a.rs", &format!("/// {list}\n/// - {list}\n/// - {list}")), [0; 0]);
    }
}
