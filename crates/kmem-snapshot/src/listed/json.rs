//! Rows of the JSON that `kmem dump --json` and `kmem top --json` print.
//!
//! A row is added to the list before the next one is read. A row by itself is bounded, too: see
//! [`up_to`].

use std::collections::BTreeMap;
use std::fmt;
use std::io::{BufRead, Read as _};
use std::marker::PhantomData;
use std::path::Path;
use std::sync::Arc;

use serde::de::{Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::limits::{MAX_CHAIN, MAX_CHAINS, MAX_TAGS};
use super::{List, bad, note, note_merged, text, unreadable};
use crate::books::{Pinned, StaticTag};
use crate::error::ReadError;
use crate::notes::Note;
use crate::program::base_name;
use crate::report::size;
use crate::sites::{Chain, Mapped, Origin, Site, Tag, total};
use crate::symbols::Place;

/// Most files with a build id.
const MAX_FILES: usize = 4096;
/// Largest file, in bytes.
const MAX_FILE: u64 = 256 << 20;

/// A reading.
#[derive(Deserialize)]
struct Reading {
    #[serde(default)]
    pid: Option<u32>,
    #[serde(default)]
    exe: String,
    #[serde(default)]
    host: Option<String>,
    #[serde(default)]
    time_ns: Option<u64>,
    #[serde(default)]
    totals: Option<Totals>,
    #[serde(default, deserialize_with = "build_ids")]
    build_ids: BTreeMap<String, String>,
    rows: Rows,
}

#[derive(Deserialize)]
struct Totals {
    bytes: i64,
    calls: u64,
}

/// Rows of a reading, added up by place.
struct Rows {
    list: List,
    /// Count of rows in the file.
    count: usize,
}

#[derive(Deserialize)]
struct Row {
    bytes: i64,
    calls: u64,
    kind: String,
    // Fields of the place. To flatten `Fields` would keep all unknown members until the row ends.
    function: Option<String>,
    file: Option<String>,
    line: Option<u32>,
    module: Option<String>,
    offset: Option<u64>,
    #[serde(default, deserialize_with = "tags")]
    tags: Vec<u32>,
    #[serde(default)]
    mapped: Option<u64>,
    #[serde(default)]
    pinned: Option<u64>,
    #[serde(default)]
    sole: Option<u64>,
    #[serde(default)]
    accurate: Option<bool>,
    #[serde(default, deserialize_with = "chains")]
    chains: Vec<Callers>,
}

#[derive(Deserialize)]
struct Callers {
    tag: u32,
    bytes: i64,
    calls: u64,
    #[serde(deserialize_with = "frames")]
    frames: Vec<Fields>,
}

/// The place of a row or a frame; unknown fields are null.
#[derive(Deserialize)]
struct Fields {
    function: Option<String>,
    file: Option<String>,
    line: Option<u32>,
    module: Option<String>,
    offset: Option<u64>,
}

/// Reads JSON.
pub(super) fn read(
    source: impl BufRead,
    path: &Path,
    notes: &mut Vec<Note>,
) -> Result<List, ReadError> {
    let mut bytes = Vec::new();
    source.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(|e| unreadable(path, e))?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(bad(path, format!("JSON of more than {} MiB", MAX_FILE >> 20)));
    }
    let reading: Reading = serde_json::from_slice(&bytes)
        .map_err(|error| bad(path, format!("not the JSON of kmem dump: {error}")))?;
    drop(bytes);
    let Reading { pid, exe, host, time_ns, totals, build_ids, rows } = reading;
    let Rows { list, count } = rows;
    let mut list = List { pid: pid.unwrap_or(0), exe, host, time_ns, build_ids, ..list };
    name_main(&mut list);
    note_merged(path, count, "rows", &list, notes);
    let has = total(&list.heap.sites);
    if let Some(Totals { bytes, calls }) = totals.filter(|of| (of.bytes, of.calls) != has) {
        let what = format!(
            "it has a part of the rows: {} in {} live objects, of {} in {calls}",
            size(has.0),
            has.1,
            size(bytes)
        );
        notes.push(note(path, what));
    }
    Ok(list)
}

/// Marks the places in the main executable, whose name may stand behind the rows.
fn name_main(list: &mut List) {
    let main = base_name(&list.exe);
    let rows = [&mut list.heap, &mut list.metadata, &mut list.mappings];
    for site in rows.into_iter().flat_map(|rows| &mut rows.sites) {
        if let Origin::Place(place) = &mut site.origin {
            place.main = place.module == main;
        }
        let frames = site.chains.iter_mut().flat_map(|chain| &mut chain.frames);
        for place in frames.filter_map(Arc::get_mut) {
            place.main = place.module == main;
        }
    }
}

impl<'de> Deserialize<'de> for Rows {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut rows = Self { list: List::default(), count: 0 };
        let add = |row: Row| {
            let added = row.site().and_then(|site| rows.list.add(site));
            added.map_err(|what| format!("row {}: {what}", rows.count))?;
            rows.count += 1;
            Ok(())
        };
        each(deserializer, add)?;
        Ok(rows)
    }
}

fn build_ids<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, String>, D::Error> {
    deserializer.deserialize_map(BuildIds)
}

struct BuildIds;

impl<'de> Visitor<'de> for BuildIds {
    type Value = BTreeMap<String, String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("build ids by path")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut all = BTreeMap::new();
        while let Some((path, id)) = map.next_entry()? {
            if all.len() == MAX_FILES {
                return Err(A::Error::custom(format!("more than {MAX_FILES} build ids")));
            }
            all.insert(path, id);
        }
        Ok(all)
    }
}

fn tags<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u32>, D::Error> {
    up_to(MAX_TAGS, "tags in a row", deserializer)
}

fn chains<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Callers>, D::Error> {
    up_to(MAX_CHAINS, "chains in a row", deserializer)
}

fn frames<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Fields>, D::Error> {
    up_to(MAX_CHAIN, "frames in a chain", deserializer)
}

/// Reads an array of at most this many elements.
fn up_to<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    most: usize,
    what: &str,
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    let mut all = Vec::new();
    let add = |element| {
        if all.len() == most {
            return Err(format!("more than {most} {what}"));
        }
        all.push(element);
        Ok(())
    };
    each(deserializer, add)?;
    Ok(all)
}

/// Reads an array, and hands on each element before the next one is read.
fn each<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
    then: impl FnMut(T) -> Result<(), String>,
) -> Result<(), D::Error> {
    deserializer.deserialize_seq(Each { then, element: PhantomData })
}

struct Each<T, F> {
    then: F,
    element: PhantomData<T>,
}

impl<'de, T: Deserialize<'de>, F: FnMut(T) -> Result<(), String>> Visitor<'de> for Each<T, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut array: A) -> Result<(), A::Error> {
        while let Some(element) = array.next_element()? {
            (self.then)(element).map_err(A::Error::custom)?;
        }
        Ok(())
    }
}

impl Row {
    fn site(self) -> Result<Site, String> {
        let Self { bytes, calls, tags, mapped, pinned, sole, .. } = self;
        let Self { function, file, line, module, offset, .. } = self;
        let fields = Fields { function, file, line, module, offset };
        let pinned = pinned.zip(sole).map(|(pinned, sole)| Pinned { pinned, sole });
        let chains: Result<_, String> = self.chains.into_iter().map(Callers::chain).collect();
        let origin = origin(&self.kind, fields, &tags)?;
        let (chains, accurate) = (chains?, self.accurate.unwrap_or(true));
        Ok(Site { bytes, calls, tags, mapped, pinned, chains, accurate, ..Site::new(origin) })
    }
}

impl Callers {
    fn chain(self) -> Result<Chain, String> {
        let Self { tag, bytes, calls, frames } = self;
        if frames.is_empty() {
            return Err(format!("the chain of tag {tag} has no frames"));
        }
        let frames = frames.into_iter().map(|frame| Arc::new(frame.place())).collect();
        Ok(Chain { tag, bytes, calls, frames })
    }
}

impl Fields {
    fn place(self) -> Place {
        Place {
            module: self.module.unwrap_or_default(),
            offset: self.offset.unwrap_or(0),
            function: self.function,
            source: self.file.zip(self.line),
            ..Place::default()
        }
    }

    /// File, line, module and function, as allocinfo text has them.
    fn tag(self) -> Tag {
        Tag {
            file: self.file.unwrap_or_default(),
            line: self.line.unwrap_or(0),
            module: self.module,
            function: self.function.unwrap_or_default(),
        }
    }
}

/// The origin that a row had when it was written.
fn origin(kind: &str, fields: Fields, tags: &[u32]) -> Result<Origin, String> {
    // A call of mapped memory has an offset, a static tag has none.
    let is_call = fields.offset.is_some();
    Ok(match kind {
        "caller" | "chain" => Origin::Place(fields.place()),
        "mapping" if is_call => Origin::Place(fields.place()),
        "mapping" if fields.file.is_none() => Origin::NotTagged,
        "static" | "mapping" => {
            let Tag { file, line, module, function } = fields.tag();
            let module = module.unwrap_or_default();
            Origin::Static(Arc::new(StaticTag { module, file, line, function }))
        }
        "metadata" => text::origin(Tag { file: "kmem".to_owned(), line: 0, ..fields.tag() }),
        "anonymous" | "stack" | "code" | "file" => {
            let Tag { file, function, .. } = fields.tag();
            let named = Mapped::with_path(&function, file);
            let named = named.or_else(|| Mapped::without_path(&function));
            Origin::Mapped(named.ok_or(format!("unknown memory {function:?}"))?)
        }
        "not_tagged" => Origin::NotTagged,
        "other_sites" => Origin::OtherSites,
        "unknown" => Origin::Unknown(tags.first().copied().unwrap_or(0)),
        other => return Err(format!("unknown kind {other:?}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(json: &str) -> String {
        read(json.as_bytes(), Path::new("json"), &mut Vec::new()).unwrap_err().to_string()
    }

    /// A row with more members, in JSON that ends behind it.
    fn row(members: &str) -> String {
        let fields = r#"{"bytes":1,"calls":1,"kind":"caller","offset":1"#;
        format!(r#"{{"rows":[{fields},{members}}}"#)
    }

    #[test]
    fn a_row_is_judged_before_the_next_one_is_read() {
        let error = refusal(r#"{"rows":[{"bytes":1,"calls":1,"kind":"x"},!"#);
        assert!(error.contains("row 0: unknown kind \"x\""), "{error}");
    }

    #[test]
    fn arrays_of_a_row_are_bounded_while_they_are_read() {
        let frames =
            |count| format!(r#"{{"tag":8,"bytes":1,"calls":1,"frames":[{}"#, "{},".repeat(count));
        let error = refusal(&row(&format!(r#""chains":[{}!"#, frames(33))));
        assert!(error.contains("more than 32 frames in a chain at line 1"), "{error}");
        let error = refusal(&row(&format!(r#""chains":[{}!"#, frames(32))));
        assert!(error.contains("expected value"), "{error}");
        let chain = format!("{}{{}}]}},", frames(0));
        let error = refusal(&row(&format!(r#""chains":[{}!"#, chain.repeat(MAX_CHAINS + 1))));
        assert!(error.contains("more than 131072 chains in a row at line 1"), "{error}");
        let error = refusal(&row(&format!(r#""tags":[{}!"#, "8,".repeat(MAX_TAGS + 1))));
        assert!(error.contains("more than 1048576 tags in a row at line 1"), "{error}");
    }

    #[test]
    fn build_ids_are_bounded_while_they_are_read() {
        let ids: Vec<String> = (0..=MAX_FILES).map(|n| format!(r#""{n}":"0""#)).collect();
        let error = refusal(&format!(r#"{{"build_ids":{{{}!"#, ids.join(",")));
        assert!(error.contains("more than 4096 build ids at line 1"), "{error}");
        let list = format!(r#"{{"rows":[],"build_ids":{{{}}}}}"#, ids[1..].join(","));
        let list = read(list.as_bytes(), Path::new("json"), &mut Vec::new()).unwrap();
        assert_eq!(list.build_ids.len(), MAX_FILES);
    }

    #[test]
    fn the_main_executable_may_be_named_behind_the_rows() {
        let json = row(r#""module":"app","chains":[{"tag":8,"bytes":1,"calls":1,
            "frames":[{"module":"app"},{"module":"lib"}]}]"#)
            + r#"],"exe":"/bin/app"}"#;
        let list = read(json.as_bytes(), Path::new("json"), &mut Vec::new()).unwrap();
        let site = &list.heap.sites[0];
        let Origin::Place(place) = &site.origin else { panic!("{site:?}") };
        let frames = site.chains[0].frames.iter().map(|frame| frame.main);
        assert_eq!((place.main, frames.collect::<Vec<_>>()), (true, vec![true, false]));
    }
}
