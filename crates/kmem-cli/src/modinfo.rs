//! `kmem modinfo`: the description in a module's file, as modinfo(8) prints it.

use std::io::{self, BufWriter, IsTerminal as _, Write};
use std::path::{Path, PathBuf};

use kmem_module::describe::{self, Entry};
use kmem_snapshot::escape::printable;
use kmem_snapshot::output;
use serde_json::{Map, Value, json};

use crate::failure::Failure;

/// Arguments of `kmem modinfo`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print only the values of this field
    #[arg(short = 'F', long)]
    field: Option<String>,
    /// End each line with a zero byte, instead of a newline
    #[arg(short = '0', long)]
    null: bool,
    /// Print JSON, one line per file
    #[arg(long, conflicts_with_all = ["field", "null"])]
    json: bool,
    /// Files of modules of kmem or of the Linux kernel, compressed or not
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

pub(crate) fn main(args: &Args) -> Result<(), Failure> {
    let mut out = BufWriter::new(io::stdout().lock());
    // A terminal would obey control characters. A pipe gets the bytes as they are.
    let terminal = io::stdout().is_terminal();
    let mut failures = Vec::new();
    for path in &args.files {
        let full = std::path::absolute(path).unwrap_or_else(|_| path.clone());
        let entries = match describe::file(path) {
            Ok(entries) => entries,
            // A bad file does not hide the good ones.
            Err(error) => {
                failures.push(Failure::of_module(path, &error));
                continue;
            }
        };
        if args.json {
            output::json::write(&mut out, &json(&full, &entries))?;
            continue;
        }
        for (key, value) in lines(&full, &entries) {
            let wanted = args.field.as_ref().is_none_or(|field| field.as_bytes() == key);
            if !wanted {
                continue;
            }
            let key = String::from_utf8_lossy(&key);
            let (key, value) = if terminal {
                let lossy = String::from_utf8_lossy(&value);
                let value = lossy.split('\n').map(printable).collect::<Vec<_>>().join("\n");
                (printable(&key), value.into_bytes())
            } else {
                (key, value)
            };
            if args.field.is_none() {
                write!(out, "{:<16}", format!("{key}:"))?;
            }
            out.write_all(&value)?;
            out.write_all(if args.null { b"\0" } else { b"\n" })?;
        }
    }
    out.flush()?;
    Failure::of_inputs(failures)
}

/// Lines to print: the file, the entries in order, then the parameters with their types, the last
/// one first.
fn lines(path: &Path, entries: &[Entry]) -> Vec<Entry> {
    use std::os::unix::ffi::OsStrExt as _;
    let mut lines = vec![(b"filename".to_vec(), path.as_os_str().as_bytes().to_vec())];
    let mut params = Vec::new();
    for (key, value) in entries {
        match &key[..] {
            b"parm" | b"parmtype" => add_param(&mut params, key == b"parm", value),
            _ => lines.push((key.clone(), value.clone())),
        }
    }
    for Param { name, text, of } in params.into_iter().rev() {
        let mut line = name;
        line.push(b':');
        match (text, of) {
            (Some(text), Some(of)) => line.extend([&text[..], b" (", &of[..], b")"].concat()),
            (text, of) => line.extend(text.or(of).unwrap_or_default()),
        }
        lines.push((b"parm".to_vec(), line));
    }
    lines
}

/// A parameter of a module.
struct Param {
    name: Vec<u8>,
    /// Its description.
    text: Option<Vec<u8>>,
    /// Its type.
    of: Option<Vec<u8>>,
}

/// Adds the description or the type of a parameter, `name:value`.
fn add_param(params: &mut Vec<Param>, is_text: bool, value: &[u8]) {
    let at = value.iter().position(|&b| b == b':').unwrap_or(value.len());
    let (name, rest) = (&value[..at], value.get(at + 1..).unwrap_or_default().to_vec());
    let param = match params.iter_mut().position(|param| param.name == name) {
        Some(found) => &mut params[found],
        None => {
            params.push(Param { name: name.to_vec(), text: None, of: None });
            let last = params.len() - 1;
            &mut params[last]
        }
    };
    let field = if is_text { &mut param.text } else { &mut param.of };
    *field = Some(rest);
}

/// An object of every key with the list of its values.
fn json(path: &Path, entries: &[Entry]) -> Value {
    let mut map = Map::new();
    map.insert("filename".to_owned(), json!(path.to_string_lossy()));
    for (key, value) in entries {
        let (key, value) = (String::from_utf8_lossy(key), String::from_utf8_lossy(value));
        let list = map.entry(key).or_insert_with(|| json!([]));
        if let Value::Array(list) = list {
            list.push(json!(value));
        }
    }
    Value::Object(map)
}
