//! A child that answers on its standard output while it runs.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

/// A child whose standard input and output are pipes to the test. It is killed when the value is
/// dropped.
#[derive(Debug)]
pub struct Coprocess {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Coprocess {
    /// Starts a command.
    #[track_caller]
    pub fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().expect("stdout is a pipe"));
        Self { child, stdin, stdout }
    }

    /// Process id of the child.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the next line, without its end; `None` when the child has closed its output.
    pub fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let length = self.stdout.read_line(&mut line).expect("lines of text");
        (length != 0).then(|| line.trim_end().to_owned())
    }

    /// Waits for the line `point`, and returns the lines before it.
    #[track_caller]
    pub fn wait_for(&mut self, point: &str) -> Vec<String> {
        let mut lines = Vec::new();
        loop {
            match self.line() {
                Some(line) if line == point => return lines,
                Some(line) => lines.push(line),
                None => panic!("the child ended before it said {point:?}, after {lines:?}"),
            }
        }
    }

    /// Writes to the child's standard input.
    #[track_caller]
    pub fn write(&mut self, bytes: &[u8]) {
        let stdin = self.stdin.as_mut().expect("its input is open");
        stdin.write_all(bytes).expect("the child reads its input");
    }

    /// Closes its standard input.
    pub fn close_input(&mut self) {
        self.stdin = None;
    }

    /// Closes its standard input and reads its standard error, which must be a pipe, to the end.
    /// A second call returns an empty text.
    pub fn stderr(&mut self) -> String {
        self.close_input();
        let mut bytes = Vec::new();
        if let Some(mut pipe) = self.child.stderr.take() {
            pipe.read_to_end(&mut bytes).expect("a pipe can be read");
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Closes its standard input, and waits until it ends.
    pub fn wait(&mut self) -> ExitStatus {
        self.close_input();
        self.child.wait().expect("the child is ours")
    }

    /// Sends it SIGKILL, and waits until it ends.
    pub fn kill(&mut self) -> ExitStatus {
        self.child.kill().expect("the child is ours");
        self.child.wait().expect("the child is ours")
    }
}

impl Drop for Coprocess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
