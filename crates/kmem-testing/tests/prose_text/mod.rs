//! Prose in files: comments as paragraphs, pages of Markdown, sentences.

/// Language of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Language {
    Rust,
    /// C, C++ and assembler.
    C,
    Shell,
    Markdown,
}

impl Language {
    /// Language of a file by its name; `None` if the file has no prose.
    pub(crate) fn of(path: &str) -> Option<Self> {
        match path.rsplit_once('.')?.1 {
            "rs" => Some(Self::Rust),
            "c" | "h" | "cc" | "hpp" | "S" => Some(Self::C),
            "sh" => Some(Self::Shell),
            "md" => Some(Self::Markdown),
            _ => None,
        }
    }
}

/// Place of a paragraph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Documentation in code: `///`, `//!`, `/**`.
    Doc,
    /// Any other comment.
    Comment,
    /// Markdown.
    Page,
    /// A row of a table.
    Table,
    Heading,
}

/// Text without a break, with spaces for line ends and placeholders for inline code.
pub(crate) struct Paragraph {
    pub(crate) kind: Kind,
    /// The first of its comment.
    pub(crate) is_first: bool,
    text: String,
    /// First character of each line, and the line's number.
    starts: Vec<(usize, usize)>,
}

impl Paragraph {
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Line of a character of the text.
    pub(crate) fn line_of(&self, character: usize) -> usize {
        let next = self.starts.partition_point(|(start, _)| *start <= character);
        self.starts[next - 1].1
    }
}

/// A line of a comment or a page.
struct Line {
    number: usize,
    text: String,
    kind: Kind,
    /// True if it continues the comment of the line before.
    continues: bool,
    /// True if it stands for itself: code, or a row of a list.
    is_preformatted: bool,
}

/// Returns whether the text behind a comment's mark is indented like code.
fn is_indented(text: &str) -> bool {
    let text = text.strip_prefix(' ').unwrap_or(text);
    text.starts_with('\t') || text.starts_with("    ")
}

/// Numbers of lines that are too wide and could be broken.
pub(crate) fn long_lines(language: Language, text: &str, columns: usize) -> Vec<usize> {
    let mut in_fence = false;
    let mut found = Vec::new();
    for (at, line) in text.lines().enumerate() {
        if language == Language::Markdown && is_fence(line) {
            in_fence = !in_fence;
        }
        let exempt = match language {
            Language::Rust => line.contains("://"),
            Language::Markdown => {
                in_fence || line.trim_start().starts_with('|') || crosses_by_link(line, columns)
            }
            Language::C | Language::Shell => false,
        };
        if line.chars().count() > columns && !exempt {
            found.push(at + 1);
        }
    }
    found
}

/// Returns whether the first word of a line, after the mark of a list, is a link that does not fit.
fn crosses_by_link(line: &str, columns: usize) -> bool {
    let text = line.trim_start().trim_start_matches(['-', '*', '>']).trim_start();
    let word = text.split_whitespace().next().unwrap_or_default();
    let end = line.chars().count() - text.chars().count() + word.chars().count();
    end > columns && (word.contains("](") || word.contains("://"))
}

fn is_fence(text: &str) -> bool {
    text.trim_start().starts_with("```")
}

/// All prose of a file.
pub(crate) fn paragraphs(language: Language, text: &str) -> Vec<Paragraph> {
    let lines = match language {
        Language::Rust | Language::C => comments(language, text),
        Language::Shell => shell_comments(text),
        Language::Markdown => {
            let line = |(at, text): (usize, &str)| Line {
                number: at + 1,
                text: text.trim().to_string(),
                kind: Kind::Page,
                continues: at > 0,
                is_preformatted: false,
            };
            text.lines().enumerate().map(line).collect()
        }
    };
    let mut found = Vec::new();
    let mut open: Vec<Line> = Vec::new();
    let mut in_fence = false;
    let mut is_first = true;
    let mut close = |open: &mut Vec<Line>, is_first: &mut bool| {
        if !open.is_empty() {
            found.push(join(std::mem::take(open), *is_first));
            *is_first = false;
        }
    };
    for mut line in lines {
        if !line.continues {
            close(&mut open, &mut is_first);
            is_first = true;
            in_fence = false;
        }
        if is_fence(&line.text) {
            in_fence = !in_fence;
            close(&mut open, &mut is_first);
            continue;
        }
        let is_row = line.text.starts_with('|');
        let is_heading = line.text.starts_with('#') && line.kind != Kind::Comment;
        let starts = is_row || is_heading || line.is_preformatted || is_item(&line.text);
        if in_fence || line.text.is_empty() || starts {
            close(&mut open, &mut is_first);
        }
        if in_fence || line.text.is_empty() {
            continue;
        }
        if is_row {
            line.kind = Kind::Table;
        } else if is_heading {
            line.kind = Kind::Heading;
        }
        let stands_alone = is_row || is_heading || line.is_preformatted;
        open.push(line);
        if stands_alone {
            close(&mut open, &mut is_first);
        }
    }
    close(&mut open, &mut is_first);
    found
}

fn is_item(text: &str) -> bool {
    let number = text.trim_start_matches(|c: char| c.is_ascii_digit());
    text.starts_with("- ")
        || text.starts_with("* ")
        || number.len() < text.len() && number.starts_with(". ")
}

fn join(lines: Vec<Line>, is_first: bool) -> Paragraph {
    let kind = lines[0].kind;
    let mut text = String::new();
    let mut starts = Vec::new();
    for line in lines {
        if !text.is_empty() {
            text.push(' ');
        }
        starts.push((text.chars().count(), line.number));
        text.push_str(&line.text);
    }
    Paragraph { kind, is_first, text: without_code(&text), starts }
}

/// The text with `x` for each character of inline code.
fn without_code(text: &str) -> String {
    let mut in_code = false;
    let hide = |c: char| {
        if c == '`' {
            in_code = !in_code;
        }
        if in_code && c != '`' { 'x' } else { c }
    };
    let hidden = text.chars().map(hide).collect();
    // An odd mark opens nothing.
    if in_code { text.to_string() } else { hidden }
}

/// Sentences of a paragraph, each with the position of its first character.
pub(crate) fn sentences(text: &str) -> Vec<(usize, String)> {
    let chars: Vec<char> = text.chars().collect();
    let mut found = Vec::new();
    let mut start = 0;
    for at in 0..chars.len() {
        let mut next = at + 1;
        while chars.get(next).is_some_and(|c| matches!(c, ')' | '"' | '*')) {
            next += 1;
        }
        let past_space = chars.get(next).is_none_or(|c| c.is_whitespace());
        let follows = chars.get(next + 1);
        let ends = past_space
            && match chars[at] {
                '.' | '?' | '!' => follows.is_none_or(|c| !c.is_lowercase()),
                // Errors in a row: "`EBUSY`: it is being loaded; `EINTR`: a signal arrived".
                ';' => follows.is_some_and(|c| *c == '`' || c.is_uppercase()),
                _ => false,
            };
        if ends || at + 1 == chars.len() {
            found.push((start, chars[start..=at].iter().collect()));
            start = (next + 1).min(chars.len());
        }
    }
    found.retain(|(_, text): &(usize, String)| !text.trim().is_empty());
    found
}

/// Whole lines that are comments. A word right behind the `#` is none: scripts contain C, with its
/// `#include`.
fn shell_comments(text: &str) -> Vec<Line> {
    let mut found: Vec<Line> = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let Some(text) = line.trim_start().strip_prefix('#') else { continue };
        if text.starts_with(|c: char| c == '!' || c.is_alphanumeric()) {
            continue;
        }
        let continues = found.last().is_some_and(|last| last.number == at);
        let (is_preformatted, text) = (is_indented(text), text.trim().to_string());
        let kind = Kind::Comment;
        found.push(Line { number: at + 1, text, kind, continues, is_preformatted });
    }
    found
}

/// Comments of Rust or C, found past literals.
fn comments(language: Language, text: &str) -> Vec<Line> {
    let is_own = |line: &str| line.trim_start().starts_with(['/', '*']);
    let own_lines = text.lines().map(is_own).collect();
    let chars = text.chars().collect();
    let mut scanner = Scanner { chars, own_lines, at: 0, line: 1, found: Vec::new() };
    while let Some(&c) = scanner.chars.get(scanner.at) {
        if scanner.sees("//") {
            scanner.line_comment();
        } else if scanner.sees("/*") {
            scanner.block_comment(language == Language::Rust);
        } else if !scanner.is_in_word() && scanner.raw_string(language) {
        } else if c == '"' {
            scanner.literal('"');
        } else if c == '\'' && scanner.is_character(language) {
            scanner.literal('\'');
        } else {
            scanner.step();
        }
    }
    scanner.found
}

struct Scanner {
    chars: Vec<char>,
    /// For each line, whether it has nothing in front of its comment.
    own_lines: Vec<bool>,
    at: usize,
    /// Number of the line that `at` is in.
    line: usize,
    found: Vec<Line>,
}

impl Scanner {
    fn sees(&self, text: &str) -> bool {
        text.chars().enumerate().all(|(offset, c)| self.chars.get(self.at + offset) == Some(&c))
    }

    /// Returns whether the character before belongs to a word, other than the `b` and `c` of
    /// literals.
    fn is_in_word(&self) -> bool {
        let before = |back: usize| {
            let at = self.at.checked_sub(back)?;
            self.chars.get(at).copied().filter(|c| c.is_alphanumeric() || *c == '_')
        };
        match before(1) {
            Some('b' | 'c' | 'u' | 'L') => before(2).is_some(),
            other => other.is_some(),
        }
    }

    fn step(&mut self) {
        if self.chars.get(self.at) == Some(&'\n') {
            self.line += 1;
        }
        self.at += 1;
    }

    /// Passes a literal with escapes.
    fn literal(&mut self, end: char) {
        self.step();
        while let Some(&c) = self.chars.get(self.at) {
            if c == '\\' {
                self.step();
            }
            self.step();
            if c == end {
                return;
            }
        }
    }

    /// Passes a raw string, if one starts here.
    fn raw_string(&mut self, language: Language) -> bool {
        let rest = &self.chars[self.at..];
        let (open, close) = if language == Language::Rust {
            let hashes = rest.iter().skip(1).take_while(|c| **c == '#').count();
            (format!("r{}\"", "#".repeat(hashes)), format!("\"{}", "#".repeat(hashes)))
        } else {
            let delimiter: String =
                rest.iter().skip(2).take(16).take_while(|c| **c != '(').collect();
            (format!("R\"{delimiter}("), format!("){delimiter}\""))
        };
        if !self.sees(&open) {
            return false;
        }
        self.at += open.chars().count();
        while self.at < self.chars.len() && !self.sees(&close) {
            self.step();
        }
        self.at += close.chars().count();
        true
    }

    /// Returns whether a `'` starts a character: not a lifetime, nor a separator in a number.
    fn is_character(&self, language: Language) -> bool {
        let next = |offset: usize| self.chars.get(self.at + offset);
        match language {
            Language::Rust => next(1) == Some(&'\\') || next(2) == Some(&'\''),
            _ => !self.is_in_word(),
        }
    }

    /// Adds a line of a comment that started on its own line or behind code.
    fn add(&mut self, text: &str, kind: Kind, number: usize, own: bool, inside: bool) {
        let last = self.found.last();
        let follows = last.is_some_and(|last| last.number + 1 == number && last.kind == kind);
        let after_own = |line: &Line| line.continues || self.own_lines[line.number - 1];
        let continues = inside || own && follows && last.is_some_and(after_own);
        let (is_preformatted, text) = (is_indented(text), text.trim().to_string());
        self.found.push(Line { number, text, kind, continues, is_preformatted });
    }

    fn line_comment(&mut self) {
        let own = self.own_lines[self.line - 1];
        let rest = &self.chars[self.at + 2..];
        let text: String = rest.iter().take_while(|c| **c != '\n').collect();
        self.at += 2 + text.chars().count();
        let is_doc = text.starts_with('!') || text.starts_with('/') && !text.starts_with("//");
        let kind = if is_doc { Kind::Doc } else { Kind::Comment };
        self.add(text.trim_start_matches(['/', '!', '<']), kind, self.line, own, false);
    }

    fn block_comment(&mut self, nests: bool) {
        let is_doc = self.sees("/**") && !self.sees("/**/") || self.sees("/*!");
        let kind = if is_doc { Kind::Doc } else { Kind::Comment };
        let own = self.own_lines[self.line - 1];
        self.at += 2;
        let (mut depth, mut text, mut inside) = (1, String::new(), false);
        while let Some(&c) = self.chars.get(self.at) {
            let ends = self.sees("*/");
            if ends {
                depth -= 1;
                self.at += 2;
            } else if nests && self.sees("/*") {
                depth += 1;
                self.at += 2;
                continue;
            }
            if depth == 0 || c == '\n' {
                let line = text.trim_start().trim_start_matches(['*', '!']);
                self.add(line, kind, self.line, own, inside);
                (inside, text) = (true, String::new());
            }
            if depth == 0 {
                return;
            }
            if !ends {
                text.push(c);
                self.step();
            }
        }
    }
}
