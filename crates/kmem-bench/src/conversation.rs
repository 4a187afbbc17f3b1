//! Communication with a child process: a line of text to it, a line of JSON back.

use crate::Failure;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Lines, Write, stdout};
use std::process::{Child, ChildStdout, Command, Stdio};

/// The parent's end.
#[derive(Debug)]
pub(crate) struct Conversation {
    process: Child,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Conversation {
    /// Starts `command`.
    pub(crate) fn start(command: &mut Command) -> Result<Self, String> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().map_err(|error| error.to_string())?;
        let output = process.stdout.take().ok_or("the child has no output")?;
        Ok(Self { process, answers: BufReader::new(output).lines() })
    }

    /// The child's pid.
    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Sends a line.
    pub(crate) fn tell(&mut self, line: &str) -> Result<(), String> {
        let input = self.process.stdin.as_mut().ok_or("the child has no input")?;
        writeln!(input, "{line}").map_err(|error| error.to_string())
    }

    /// Reads a line.
    pub(crate) fn read<T: for<'a> Deserialize<'a>>(&mut self) -> Result<T, String> {
        let Some(Ok(line)) = self.answers.next() else {
            let status = self.process.wait().map_err(|error| error.to_string())?;
            return Err(format!("its process ended: {status}"));
        };
        serde_json::from_str(&line).map_err(|error| format!("{error}: {line}"))
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        // The child ends at the end of its input.
        drop(self.process.stdin.take());
        // A child that failed has reported it.
        let _ = self.process.wait();
    }
}

/// Writes one line to the parent, in the child.
pub(crate) fn answer(value: &impl Serialize) -> Result<(), Failure> {
    let line = serde_json::to_string(value).map_err(|error| Failure::Failed(error.to_string()))?;
    let mut output = stdout().lock();
    writeln!(output, "{line}")?;
    Ok(output.flush()?)
}
