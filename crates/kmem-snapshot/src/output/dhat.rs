//! Call stacks in the file format of DHAT, version 2, for its viewer `dh_view.html`.
//!
//! The file has no lifetimes: its totals are the live bytes and objects. The viewer needs each
//! stack once, and the frame `[root]` first in the table of frames.
//!
//! Source: the comment in `dhat/dh_main.c` of valgrind, and `dh_view.js`.

use serde::Serialize;

use crate::escape::printable;
use crate::reading::Reading;
use crate::stacks::{Frame, Stacks};

/// A file for the viewer, ready to be serialized as JSON.
#[derive(Debug, Serialize)]
pub struct Dhat {
    #[serde(rename = "dhatFileVersion")]
    version: u32,
    mode: &'static str,
    verb: &'static str,
    #[serde(rename = "bklt")]
    lifetimes: bool,
    #[serde(rename = "bkacc")]
    accesses: bool,
    #[serde(rename = "bksu")]
    blocks: &'static str,
    #[serde(rename = "tu")]
    time_unit: &'static str,
    #[serde(rename = "Mtu")]
    million_time_units: &'static str,
    #[serde(rename = "cmd")]
    command: String,
    pid: u32,
    #[serde(rename = "te")]
    end: u64,
    #[serde(rename = "pps")]
    points: Vec<Point>,
    #[serde(rename = "ftbl")]
    frames: Vec<String>,
}

/// A stack.
#[derive(Debug, Serialize)]
struct Point {
    #[serde(rename = "tb")]
    bytes: i64,
    #[serde(rename = "tbk")]
    blocks: i64,
    /// Its frames, the innermost first.
    #[serde(rename = "fs")]
    frames: Vec<usize>,
}

impl Dhat {
    /// Builds the file for some stacks.
    #[must_use]
    pub fn of(reading: &Reading, of: &Stacks<'_>) -> Self {
        let root = ["[root]".to_owned()];
        let points = of.stacks.iter().map(|stack| Point {
            bytes: stack.bytes,
            // A kernel writes -1 as 2^64 - 1.
            blocks: stack.calls.cast_signed(),
            frames: stack.frames.iter().rev().map(|frame| frame + 1).collect(),
        });
        Self {
            version: 2,
            mode: "kmem",
            verb: "Allocated",
            lifetimes: false,
            accesses: false,
            blocks: "objects",
            time_unit: "ns",
            million_time_units: "ms",
            command: printable(&reading.snapshot.exe).into_owned(),
            pid: reading.snapshot.pid,
            end: 0,
            points: points.collect(),
            frames: root.into_iter().chain(of.frames.iter().map(|&frame| text(frame))).collect(),
        }
    }
}

/// A frame in words: address, function and place.
fn text(frame: Frame<'_>) -> String {
    let address = frame.address().map(|address| format!("{address:#x}: ")).unwrap_or_default();
    let location = frame.location();
    let location = if location.is_empty() { location } else { format!(" ({location})") };
    printable(&format!("{address}{}{location}", frame.name())).into_owned()
}
