//! A guard over the errors of the command: each text says what to do next. It names a command, an
//! option or a variable, or it has a part that begins with the word for the step.

use kmem_testing::tree;
use proc_macro2::{TokenStream, TokenTree};

/// The crates whose errors the command prints.
const SOURCES: [&str; 2] = ["crates/kmem-cli/src/", "crates/kmem-snapshot/src/"];

/// Constructors of errors with a text in them, and functions that make such errors.
const MAKERS: [&str; 9] = [
    "Trouble",
    "Absent",
    "Permission",
    "Choice",
    "BadSetting",
    "NothingRecorded",
    "nothing",
    "absent",
    "has_no",
];

/// Words with which a step begins.
const STEPS: [&str; 25] = [
    "add", "boot", "build", "choose", "correct", "copy", "dump", "free", "give", "install", "link",
    "load", "make", "mount", "name", "put", "read", "record", "run", "send", "set", "shorten",
    "start", "switch", "try",
];

/// Texts without a step, and why they have none. `*` stands for any end.
const ALLOWED: [(&str, &str); 21] = [
    ("{path}: {source}", "the path and the reason of the system say what to mend"),
    ("{}: {source}", "the path and the reason of the system say what to mend"),
    ("{}: {e}", "the path and the reason of the system say what to mend"),
    ("{}: {error}", "the path and the reason of the system say what to mend"),
    ("{path}: {e}", "the path and the reason of the system say what to mend"),
    ("{path}: {what}", "a damaged file stays so: the text has the place of the damage"),
    ("line {line}: *", "a damaged text stays so: the text has the place of the damage"),
    ("not allocinfo text: *", "the file is another one than the user meant"),
    ("allocinfo version *", "the file is of a kernel that is newer than this command"),
    ("{ALLOCINFO}: {why}", "each of the reasons has a step"),
    ("{}: {kind} has no {what}", "each subject has a step"),
    ("there is no file {text}, and {why}", "the reason has a step"),
    ("{group}: {why}", "the reason says what is against the group"),
    ("process {pid}", "a subject: the step is in the other text of the error"),
    ("{lost} reports could not be written", "each of them had a message of its own"),
    ("cannot wait*", "the system fails, and says why"),
    ("cannot serve on {at}: {error}", "the system fails, and says why"),
    ("cannot write the output: {error}", "the reason of the system says what to mend"),
    ("cannot unload: {e}", "the reason of the loader says what is against it"),
    ("cannot find this program: {e}", "the system fails, and says why"),
    ("cannot start again under {}: {error}", "the system fails, and says why"),
];

/// True when a text says what to do next.
fn has_a_step(text: &str) -> bool {
    let is_option = |word: &str| {
        let word = word.trim_start_matches(['(', '"']);
        word.strip_prefix("--")
            .or(word.strip_prefix('-'))
            .is_some_and(|name| name.starts_with(|c: char| c.is_ascii_alphabetic()))
    };
    let is_variable = |word: &str| {
        let is_name = |c: char| c.is_ascii_uppercase() || c == '_';
        let name = word.split(|c: char| !is_name(c)).next().unwrap_or_default();
        name.contains('_') && name.len() > 4
    };
    let begins = |part: &str| {
        let word = part.split(|c: char| !c.is_alphabetic()).next().unwrap_or_default();
        STEPS.contains(&word.to_lowercase().as_str())
    };
    let parts = text.split([':', ';', '.', ',']).flat_map(|part| part.split(" and "));
    text.contains("`kmem ")
        || text.split_whitespace().any(|word| is_option(word) || is_variable(word))
        || parts.map(str::trim_start).any(begins)
}

/// Texts of errors in a file, outside of tests.
#[derive(Default)]
struct Texts(Vec<String>);

impl Texts {
    fn of(source: &str) -> Self {
        let tokens: TokenStream = source.parse().expect("a file of Rust");
        let mut this = Self::default();
        this.add(&mut Vec::new(), tokens);
        this
    }

    /// Adds the texts in some tokens. `outer` has the tokens before each group around them.
    fn add(&mut self, outer: &mut Vec<Vec<TokenTree>>, tokens: TokenStream) {
        outer.push(Vec::new());
        for token in tokens {
            let before = outer.last().expect("the list that was pushed");
            if let TokenTree::Group(group) = &token {
                let word = |back: usize| {
                    let at = before.len().checked_sub(back);
                    at.map(|at| before[at].to_string()).unwrap_or_default()
                };
                let inner: Vec<_> = group.stream().into_iter().collect();
                if word(1) == "tests" && word(2) == "mod" {
                    continue;
                } else if MAKERS.contains(&word(1).as_str()) && word(2) != "fn" {
                    let found = texts(&inner);
                    self.0.extend(if found.is_empty() { bound(outer, &inner) } else { found });
                } else if inner.first().is_some_and(|first| first.to_string() == "error")
                    && word(1) == "#"
                {
                    self.0.extend(texts(&inner).into_iter().take(1));
                }
                self.add(outer, group.stream());
            }
            outer.last_mut().expect("the list that was pushed").push(token);
        }
        outer.pop();
    }
}

/// Texts of some tokens that are more than one word.
fn texts(tokens: &[TokenTree]) -> Vec<String> {
    let mut found = Vec::new();
    for (nth, token) in tokens.iter().enumerate() {
        match token {
            // An attribute, such as the documentation of a field.
            TokenTree::Group(_) if nth > 0 && tokens[nth - 1].to_string() == "#" => {}
            TokenTree::Group(group) => {
                found.extend(texts(&group.stream().into_iter().collect::<Vec<_>>()));
            }
            TokenTree::Literal(literal) => {
                let text = literal.to_string();
                let inner = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
                // A text goes on in the next line behind a backslash.
                let parts = inner.into_iter().flat_map(|text| text.split("\\\n"));
                let parts = parts.enumerate().map(|(nth, part)| match nth {
                    0 => part,
                    _ => part.trim_start(),
                });
                found.push(parts.collect::<String>());
            }
            _ => {}
        }
    }
    found.retain(|text| text.contains(' ') && text.contains(char::is_alphabetic));
    found
}

/// Texts of the variables in an argument: those behind the last `let` of such a name.
fn bound(outer: &[Vec<TokenTree>], argument: &[TokenTree]) -> Vec<String> {
    let names: Vec<String> = argument.iter().map(ToString::to_string).collect();
    for tokens in outer.iter().rev() {
        let is_let = |at: &usize| {
            tokens[*at].to_string() == "let"
                && tokens.get(at + 1).is_some_and(|name| names.contains(&name.to_string()))
        };
        if let Some(at) = (0..tokens.len()).rev().find(is_let) {
            let end = tokens[at..].iter().position(|token| token.to_string() == ";");
            return texts(&tokens[at..at + end.unwrap_or(tokens.len() - at)]);
        }
    }
    Vec::new()
}

#[test]
fn every_error_of_the_command_says_what_to_do_next() {
    let mut unhelpful = Vec::new();
    let mut used = vec![false; ALLOWED.len()];
    let mut count = 0;
    for path in tree::files() {
        let is_source = SOURCES.iter().any(|source| path.starts_with(source));
        if !is_source || !path.ends_with(".rs") {
            continue;
        }
        for text in Texts::of(&tree::read(&path).expect("a file")).0 {
            count += 1;
            let is_allowed = |known: &str| match known.strip_suffix('*') {
                Some(start) => text.starts_with(start),
                None => text == known,
            };
            let allowed = ALLOWED.iter().position(|(known, _)| is_allowed(known));
            if let Some(at) = allowed {
                used[at] = true;
            } else if !has_a_step(&text) {
                unhelpful.push(format!("{path}: {text}"));
            }
        }
    }
    assert!(count > 80, "{count} texts were found");
    assert!(unhelpful.is_empty(), "errors without a next step:\n{}", unhelpful.join("\n"));
    for ((known, why), used) in ALLOWED.iter().zip(used) {
        assert!(used, "there is no text {known:?} any more ({why})");
    }
}

#[test]
fn a_text_without_a_step_is_found_where_it_is_made() {
    let source = r#"
        #[error("it is broken: {0}")]
        struct One;
        fn two(what: bool) -> Failure {
            let what = if what { "there is nothing" } else { "start it with `kmem run`" };
            if x { return Err(Failure::Trouble(what.to_owned())); }
            Failure::Absent(format!("{}: is \
                gone", name))
        }
        mod tests { fn three() { Failure::Trouble("not a text of the command") } }
    "#;
    let texts = Texts::of(source).0;
    let expected =
        ["it is broken: {0}", "there is nothing", "start it with `kmem run`", "{}: is gone"];
    assert_eq!(texts, expected);
    let steps: Vec<bool> = texts.iter().map(|text| has_a_step(text)).collect();
    assert_eq!(steps, [false, false, true, false]);
}
