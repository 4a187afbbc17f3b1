//! Writing allocinfo text.

use std::fmt;
use std::io::{self, Write};

use super::read::{NodeRow, Row};
use crate::escape::word;
use crate::sites::Tag;

/// Version of the format, in its first line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Version {
    /// The version of Linux 6.10.
    V1,
    /// The version of Linux 6.16: a line may have trailing `key:value` pairs.
    #[default]
    V2,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V1 => "1.0",
            Self::V2 => "2.0",
        })
    }
}

/// Writes the two lines at the top.
///
/// # Errors
///
/// The errors of the writer.
pub fn write_header(out: &mut impl Write, version: Version) -> io::Result<()> {
    writeln!(out, "allocinfo - version: {version}")?;
    writeln!(out, "#     <size>  <calls> <tag info>")
}

/// Writes one line.
///
/// # Errors
///
/// The errors of the writer.
pub fn write_row(out: &mut impl Write, bytes: i64, calls: u64, tag: &Tag) -> io::Result<()> {
    write_row_with(out, bytes, calls, tag, NO_EXTRAS)
}

/// No extras, of a type that the compiler can infer.
const NO_EXTRAS: [(&str, &str); 0] = [];

/// Writes one line with extras: `key:value` pairs behind the function, in the given order. A pair
/// without a key is a bare value. Version 1.0 has no extras.
///
/// # Errors
///
/// The errors of the writer.
pub fn write_row_with<K: AsRef<str>, V: fmt::Display>(
    out: &mut impl Write,
    bytes: i64,
    calls: u64,
    tag: &Tag,
    extras: impl IntoIterator<Item = (K, V)>,
) -> io::Result<()> {
    write!(out, "{bytes:12} {calls:8} {}:{} ", word(&tag.file), tag.line)?;
    if let Some(module) = &tag.module {
        write!(out, "[{}] ", word(module))?;
    }
    write!(out, "func:{}", word(&tag.function))?;
    for (key, value) in extras {
        let (key, value) = (key.as_ref(), value.to_string());
        match (key, value.as_str()) {
            ("", value) => write!(out, " {}", word(value))?,
            (key, "") => write!(out, " {}:", word(key))?,
            (key, value) => write!(out, " {}:{}", word(key), word(value))?,
        }
    }
    writeln!(out, " ")
}

impl NodeRow {
    /// Writes the indented line of a node.
    ///
    /// # Errors
    ///
    /// The errors of the writer.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "        nid{}   {}   {}", self.node, self.bytes, self.calls)
    }
}

impl Row {
    /// Writes the row as it was read: its line with all extras, then the lines of its nodes. A row
    /// that [`merge`](super::merge) summed becomes one line.
    ///
    /// # Errors
    ///
    /// The errors of the writer.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let extras = self.extras.iter().map(|(key, value)| (key, value));
        write_row_with(out, self.bytes, self.calls, &self.tag, extras)?;
        self.nodes.iter().try_for_each(|node| node.write(out))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::books::StaticTag;
    use crate::sites::{Origin, Site};
    use crate::symbols::Place;

    fn line(place: Place) -> String {
        line_of(Origin::Place(place))
    }

    fn line_of(origin: Origin) -> String {
        let site = Site { bytes: 94912, calls: 2966, tags: vec![8], ..Site::new(origin) };
        let mut out = Vec::new();
        write_row(&mut out, site.bytes, site.calls, &site.origin.tag()).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn golden_text() {
        let mut out = Vec::new();
        write_header(&mut out, Version::V2).unwrap();
        assert_eq!(out, b"allocinfo - version: 2.0\n#     <size>  <calls> <tag info>\n");
        out.clear();
        write_header(&mut out, Version::V1).unwrap();
        assert_eq!(out, b"allocinfo - version: 1.0\n#     <size>  <calls> <tag info>\n");

        let place = Place {
            module: "app".into(),
            main: true,
            offset: 0x1234,
            address: 0,
            function: Some("main".into()),
            source: Some(("/src/a.c".into(), 12)),
        };
        assert_eq!(line(place.clone()), "       94912     2966 /src/a.c:12 func:main \n");
        let library = Place { main: false, module: "libx.so".into(), ..place };
        assert_eq!(
            line(library.clone()),
            "       94912     2966 /src/a.c:12 [libx.so] func:main \n"
        );
        let symbol = Place { source: None, ..library };
        assert_eq!(
            line(symbol.clone()),
            "       94912     2966 libx.so+0x1234:0 [libx.so] func:main \n"
        );
        let nothing = Place { function: None, ..symbol };
        assert_eq!(
            line(nothing),
            "       94912     2966 libx.so+0x1234:0 [libx.so] func:libx.so+0x1234 \n"
        );
    }

    #[test]
    fn extras_stand_behind_the_function() {
        let tag = Tag { file: "a.c".into(), line: 1, module: None, function: "f".into() };
        let mut out = Vec::new();
        let totals = [("total_bytes", 7_u64), ("total_calls", u64::MAX)];
        write_row_with(&mut out, 1, 2, &tag, totals).unwrap();
        write_row_with(&mut out, 1, 2, &tag, [("group", "a b\n"), ("", "7"), ("k", "")]).unwrap();
        let expected =
            "           1        2 a.c:1 func:f total_bytes:7 total_calls:18446744073709551615 
           1        2 a.c:1 func:f group:a\\040b\\012 7 k: 
";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn static_tags_speak_for_themselves() {
        let tag = StaticTag {
            module: String::new(),
            file: "src/a.c".into(),
            line: 12,
            function: "make".into(),
        };
        let text = |tag| line_of(Origin::Static(Arc::new(tag)));
        assert_eq!(text(tag.clone()), "       94912     2966 src/a.c:12 func:make \n");
        let module = StaticTag { module: "libx.so".into(), ..tag.clone() };
        assert_eq!(text(module), "       94912     2966 src/a.c:12 [libx.so] func:make \n");
        let hostile = StaticTag { file: "a\nb c".into(), function: String::new(), ..tag };
        assert_eq!(text(hostile), "       94912     2966 a\\012b\\040c:12 func:? \n");
    }

    #[test]
    fn names_cannot_forge_lines() {
        let place = Place {
            module: "a b\n".into(),
            function: Some("f<A, B>\n 1 1 x:1 func:y".into()),
            source: Some(("/tmp/\x1b[2J x.c".into(), 1)),
            ..Place::default()
        };
        let text = line(place);
        assert_eq!(text.matches('\n').count(), 1);
        assert!(!text.contains('\x1b'));
        assert_eq!(text.split_whitespace().count(), 5);
    }
}
