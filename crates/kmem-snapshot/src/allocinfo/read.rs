//! Reading allocinfo text, from kernels and from this crate.

use std::collections::HashMap;
use std::io::{self, BufRead, Read as _};

use crate::escape::unword;
use crate::sites::Tag;

/// Longest line accepted, in bytes.
const MAX_LINE: usize = 64 << 10;

/// Counters of one NUMA node: an indented line below its row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRow {
    /// Number of the node.
    pub node: u32,
    /// Live bytes.
    pub bytes: i64,
    /// Live objects.
    pub calls: u64,
}

/// One row of allocinfo text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Live bytes. May be negative: the kernel adds counters of several CPUs while they change.
    pub bytes: i64,
    /// Live objects. May be 2^64 - 1, which stands for -1, when bytes are negative.
    pub calls: u64,
    /// File, line, module and function.
    pub tag: Tag,
    /// Trailing `key:value` pairs, known or not; a bare trailing integer has an empty key.
    pub extras: Vec<(String, String)>,
    /// Per-node lines.
    pub nodes: Vec<NodeRow>,
    /// Count of lines that were summed into this row.
    pub lines: u64,
}

/// The error for a line that is no row.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// The source could not be read.
    #[error("line {line}: {source}")]
    Io {
        /// Line number, from 1.
        line: u64,
        /// The error of the source.
        source: io::Error,
    },
    /// The first line is not that of allocinfo.
    #[error("not allocinfo text: the first line is {found:?}")]
    NotAllocinfo {
        /// Beginning of the first line.
        found: String,
    },
    /// The reader does not know this version.
    #[error("allocinfo version {version:?}; versions 1.x and 2.x are known")]
    Version {
        /// The version.
        version: String,
    },
    /// The line is longer than any tag.
    #[error("line {line}: longer than 64 KiB")]
    TooLong {
        /// Line number, from 1.
        line: u64,
    },
    /// The line cannot be parsed as a row.
    #[error("line {line}: {what}: {text:?}")]
    Malformed {
        /// Line number, from 1.
        line: u64,
        /// The fault in the line.
        what: &'static str,
        /// Beginning of the line.
        text: String,
    },
}

/// Reads rows one by one, in memory that does not grow with the file.
///
/// ```
/// use kmem_snapshot::allocinfo::Reader;
///
/// let text = "allocinfo - version: 1.0\n  4096  1 mm/slub.c:12 func:load \n";
/// let rows: Vec<_> = Reader::new(text.as_bytes())?.collect::<Result<_, _>>()?;
/// assert_eq!((rows[0].bytes, rows[0].tag.function.as_str()), (4096, "load"));
/// # Ok::<(), kmem_snapshot::allocinfo::LineError>(())
/// ```
pub struct Reader<R> {
    source: R,
    version: String,
    line: u64,
    /// The last row. Lines of its nodes may still follow.
    pending: Option<Row>,
    /// An error found while a row was pending.
    fault: Option<LineError>,
    ended: bool,
}

impl<R: BufRead> Reader<R> {
    /// Reads the header.
    ///
    /// # Errors
    ///
    /// [`LineError::NotAllocinfo`], [`LineError::Version`]; [`LineError::Io`] when the source
    /// cannot be read.
    pub fn new(source: R) -> Result<Self, LineError> {
        let mut this = Self {
            source,
            version: String::new(),
            line: 0,
            pending: None,
            fault: None,
            ended: false,
        };
        let first = this.next_line()?.unwrap_or_default();
        let Some(version) = first.strip_prefix("allocinfo - version: ") else {
            return Err(LineError::NotAllocinfo { found: cut(&first) });
        };
        let version = version.trim_end();
        if !matches!(version.split_once('.'), Some(("1" | "2", _))) {
            return Err(LineError::Version { version: cut(version) });
        }
        this.version = version.to_owned();
        Ok(this)
    }

    /// Version in the header, such as `2.0`.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Reads the next line without its newline; none at the end.
    fn next_line(&mut self) -> Result<Option<String>, LineError> {
        self.line += 1;
        let line = self.line;
        let mut bytes = Vec::new();
        let mut limited = (&mut self.source).take(MAX_LINE as u64 + 1);
        limited.read_until(b'\n', &mut bytes).map_err(|source| LineError::Io { line, source })?;
        if bytes.is_empty() {
            return Ok(None);
        }
        if bytes.last() == Some(&b'\n') {
            bytes.pop();
        } else if bytes.len() > MAX_LINE {
            self.ended = true;
            return Err(LineError::TooLong { line });
        }
        Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
    }

    fn malformed(&self, what: &'static str, text: &str) -> LineError {
        LineError::Malformed { line: self.line, what, text: cut(text) }
    }
}

impl<R: BufRead> Iterator for Reader<R> {
    type Item = Result<Row, LineError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(fault) = self.fault.take() {
            return Some(Err(fault));
        }
        while !self.ended {
            let text = match self.next_line() {
                Ok(Some(text)) => text,
                Ok(None) => {
                    self.ended = true;
                    break;
                }
                Err(e) => {
                    self.ended = true;
                    return match self.pending.take() {
                        Some(row) => {
                            self.fault = Some(e);
                            Some(Ok(row))
                        }
                        None => Some(Err(e)),
                    };
                }
            };
            if text.starts_with('#') || text.trim().is_empty() {
                continue;
            }
            if let Some(node) = parse_node(&text)
                && let Some(row) = &mut self.pending
            {
                row.nodes.push(node);
                continue;
            }
            let before = self.pending.take();
            match parse_row(&text) {
                Ok(row) => self.pending = Some(row),
                Err(what) => {
                    let fault = self.malformed(what, &text);
                    if before.is_none() {
                        return Some(Err(fault));
                    }
                    self.fault = Some(fault);
                }
            }
            if let Some(row) = before {
                return Some(Ok(row));
            }
        }
        self.pending.take().map(Ok)
    }
}

fn cut(text: &str) -> String {
    text.chars().take(80).collect()
}

/// Parses a line of a node, such as `        nid0   94912   2966`.
fn parse_node(text: &str) -> Option<NodeRow> {
    let mut fields = text.split_ascii_whitespace();
    let node = fields.next()?.strip_prefix("nid")?.parse().ok()?;
    let bytes = fields.next()?.parse().ok()?;
    let calls = fields.next()?.parse().ok()?;
    fields.next().is_none().then_some(NodeRow { node, bytes, calls })
}

fn parse_row(text: &str) -> Result<Row, &'static str> {
    let text = text.trim_start();
    let (bytes, rest) = text.split_once(' ').ok_or("no size")?;
    let (calls, rest) = rest.trim_start().split_once(' ').ok_or("no calls")?;
    let bytes = bytes.parse().map_err(|_| "the size is not a 64-bit number")?;
    let calls = calls.parse().map_err(|_| "the calls are not a 64-bit number")?;
    let (place, function) = match rest.split_once(" func:") {
        Some((place, function)) => (place.trim(), function.trim_end()),
        None => return Err("no func:"),
    };
    let (place, module) = match place.rsplit_once(" [") {
        Some((place, module)) => {
            let module = module.strip_suffix(']').ok_or("the module has no closing bracket")?;
            (place.trim_end(), Some(unword(module).into_owned()))
        }
        None => (place, None),
    };
    let (file, line) = place.rsplit_once(':').ok_or("no line number")?;
    let line = line.parse().map_err(|_| "the line is not a number")?;
    let (function, extras) = split_extras(function);
    Ok(Row {
        bytes,
        calls,
        tag: Tag {
            file: unword(file).into_owned(),
            line,
            module,
            function: unword(function).into_owned(),
        },
        extras,
        nodes: Vec::new(),
        lines: 1,
    })
}

/// Splits `key:value` pairs and bare integers off the end of a line. It works from the right, so
/// that a function name with spaces in it stays whole.
fn split_extras(text: &str) -> (&str, Vec<(String, String)>) {
    let mut extras = Vec::new();
    let mut name = text.trim_end();
    while let Some((before, last)) = name.rsplit_once(' ') {
        let pair = match last.split_once(':') {
            Some((key, value)) if is_key(key) && !value.starts_with(':') => {
                (key.to_owned(), unword(value).into_owned())
            }
            None if last.parse::<i128>().is_ok() => (String::new(), last.to_owned()),
            _ => break,
        };
        extras.push(pair);
        name = before.trim_end();
    }
    extras.reverse();
    (name, extras)
}

fn is_key(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b))
}

/// Sums rows with equal tags and counts the lines of each, in order of appearance.
#[must_use]
pub fn merge(rows: impl IntoIterator<Item = Row>) -> Vec<Row> {
    let mut merged: Vec<Row> = Vec::new();
    let mut known: HashMap<Tag, usize> = HashMap::new();
    for row in rows {
        if let Some(sum) = known.get(&row.tag).and_then(|&at| merged.get_mut(at)) {
            sum.bytes = sum.bytes.saturating_add(row.bytes);
            // Sums are modulo 2^64, because the kernel writes -1 as 2^64 - 1.
            sum.calls = sum.calls.wrapping_add(row.calls);
            sum.lines += row.lines;
            sum.nodes.extend(row.nodes);
            sum.extras.extend(row.extras);
        } else {
            known.insert(row.tag.clone(), merged.len());
            merged.push(row);
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(body: &str) -> Vec<Result<Row, LineError>> {
        let text = format!("allocinfo - version: 2.0\n#     <size>  <calls> <tag info>\n{body}");
        Reader::new(text.as_bytes()).unwrap().collect()
    }

    fn one(line: &str) -> Row {
        rows(line).pop().unwrap().unwrap()
    }

    #[test]
    fn odd_rows_of_real_kernels() {
        let row =
            one("        -128 18446744073709551615 ./include/linux/x.h:7 [nf_tables] func:f \n");
        assert_eq!((row.bytes, row.calls), (-128, u64::MAX));
        assert_eq!(row.tag.file, "./include/linux/x.h");
        assert_eq!(row.tag.module.as_deref(), Some("nf_tables"));
        let row = one("           0        0 drivers/iommu/amd/../iommu-pages.h:94 \
             func:f accurate:no peak:12 7\n");
        assert_eq!(row.tag.line, 94);
        let extras: Vec<_> = row.extras.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(extras, [("accurate", "no"), ("peak", "12"), ("", "7")]);
        let row = one("1 1 a.cc:1 func:std::map<int, ns::T> ns::f x:y \n");
        assert_eq!(row.tag.function, "std::map<int, ns::T> ns::f");
        assert_eq!(row.extras.len(), 1);
    }

    #[test]
    fn node_rows_belong_to_the_row_above() {
        let text =
            "1 1 a.c:1 func:f \n        nid0   94912   2966\n        nid1 1 2\n2 2 b.c:1 func:g \n";
        let rows: Vec<Row> = rows(text).into_iter().map(Result::unwrap).collect();
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[0].nodes.len(), 2);
        assert_eq!(rows[0].nodes[0], NodeRow { node: 0, bytes: 94912, calls: 2966 });
    }

    #[test]
    fn repeated_tags_are_summed() {
        let text = "5 1 a.c:1 func:f \n7 1 b.c:1 func:f \n-2 18446744073709551615 a.c:1 func:f \n";
        let merged = merge(rows(text).into_iter().map(Result::unwrap));
        assert_eq!(merged.len(), 2);
        assert_eq!((merged[0].bytes, merged[0].calls, merged[0].lines), (3, 0, 2));
    }

    #[test]
    fn bad_lines_are_told_and_the_rest_is_read() {
        let got = rows(
            "1 1 a.c:1 func:f \nx\n1 x a.c:1 func:f\n1 1 a.c func:f\n1 1 a.c:1 [m func:f\n\
             1 1 a.c:1\n2 2 b.c:2 func:g \n",
        );
        assert_eq!(got.iter().filter(|r| r.is_ok()).count(), 2);
        assert_eq!(got.iter().filter(|r| r.is_err()).count(), 5);
        assert!(matches!(Reader::new(&b""[..]), Err(LineError::NotAllocinfo { .. })));
        assert!(matches!(
            Reader::new(&b"allocinfo - version: 9.0\n"[..]),
            Err(LineError::Version { .. })
        ));
        let long = format!("1 1 {}\n", "a".repeat(1 << 20));
        assert!(matches!(rows(&long)[0], Err(LineError::TooLong { .. })));
    }
}
