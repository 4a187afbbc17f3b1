//! The file format of speedscope: one profile of type "sampled", in bytes.
//!
//! Schema: <https://www.speedscope.app/file-format-schema.json>.

use serde::Serialize;

use crate::escape::printable;
use crate::stacks::{self, Stacks};

const SCHEMA: &str = "https://www.speedscope.app/file-format-schema.json";

/// A file for speedscope, ready to be serialized as JSON.
#[derive(Debug, Serialize)]
pub struct Speedscope {
    #[serde(rename = "$schema")]
    schema: &'static str,
    name: String,
    exporter: String,
    #[serde(rename = "activeProfileIndex")]
    active: usize,
    shared: Shared,
    profiles: [Profile; 1],
}

#[derive(Debug, Serialize)]
struct Shared {
    frames: Vec<Frame>,
}

#[derive(Debug, Serialize)]
struct Frame {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
}

#[derive(Debug, Serialize)]
struct Profile {
    #[serde(rename = "type")]
    kind: &'static str,
    name: String,
    unit: &'static str,
    #[serde(rename = "startValue")]
    start: i64,
    #[serde(rename = "endValue")]
    end: i64,
    samples: Vec<Vec<usize>>,
    weights: Vec<i64>,
}

impl Speedscope {
    /// Builds the file for some stacks. speedscope shows `name` as its title.
    #[must_use]
    pub fn of(of: &Stacks<'_>, name: &str) -> Self {
        let name = printable(name).into_owned();
        let frame = |frame: &stacks::Frame<'_>| Frame {
            name: printable(&frame.name()).into_owned(),
            file: frame.source().map(|(file, _)| printable(file).into_owned()),
            line: frame.source().map(|(_, line)| line),
        };
        let stacks = &of.stacks;
        let profile = Profile {
            kind: "sampled",
            name: name.clone(),
            unit: "bytes",
            start: 0,
            end: stacks.iter().fold(0, |sum, stack| stack.bytes.saturating_add(sum)),
            samples: stacks.iter().map(|stack| stack.frames.clone()).collect(),
            weights: stacks.iter().map(|stack| stack.bytes).collect(),
        };
        Self {
            schema: SCHEMA,
            name,
            exporter: format!("kmem {}", env!("CARGO_PKG_VERSION")),
            active: 0,
            shared: Shared { frames: of.frames.iter().map(frame).collect() },
            profiles: [profile],
        }
    }
}
