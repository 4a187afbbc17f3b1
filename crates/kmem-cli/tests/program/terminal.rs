//! A terminal for the command: `script` makes it, and what is drawn on it ends up as lines.

use std::io::{Read as _, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use kmem_testing::is_missing;

use super::KMEM;

/// A terminal on which the command runs.
pub(crate) struct Terminal {
    child: Child,
    input: ChildStdin,
    output: ChildStdout,
    rows: usize,
    columns: usize,
    drawn: Vec<u8>,
}

impl Terminal {
    /// Runs the command with these arguments on a terminal of this size. None, and recorded,
    /// where there is no `script`.
    pub(crate) fn start(
        (rows, columns): (usize, usize),
        args: &str,
        no_color: &str,
    ) -> Option<Self> {
        if is_missing("script") {
            return None;
        }
        let line = format!("stty rows {rows} cols {columns}; exec {KMEM} {args}");
        // A screen that never comes ends the terminal, and so the test.
        let mut command = Command::new("timeout");
        command
            .args(["--foreground", "120", "script", "-qec", &line, "/dev/null"])
            .env("TERM", "xterm-256color");
        command.env("NO_COLOR", no_color).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Some(Self { child, input, output, rows, columns, drawn: Vec::new() })
    }

    /// Types a key.
    pub(crate) fn press(&mut self, key: u8) {
        self.input.write_all(&[key]).unwrap();
    }

    /// Waits until the lines on the screen are as they should be, and returns them.
    #[track_caller]
    pub(crate) fn wait_for(&mut self, is_there: impl Fn(&[String]) -> bool) -> Vec<String> {
        let mut part = [0; 4096];
        loop {
            let lines = self.lines();
            if is_there(&lines) {
                return lines;
            }
            let len = self.output.read(&mut part).unwrap();
            assert_ne!(len, 0, "it ended: {lines:#?}");
            self.drawn.extend(&part[..len]);
        }
    }

    /// Types the key that ends the command, which must succeed. Returns all that was drawn.
    #[track_caller]
    pub(crate) fn quit(mut self) -> String {
        self.press(b'q');
        self.output.read_to_end(&mut self.drawn).unwrap();
        let drawn = String::from_utf8_lossy(&self.drawn).into_owned();
        assert!(self.child.wait().unwrap().success(), "{drawn}");
        drawn
    }

    /// The lines on the screen: texts at the places where they were drawn.
    fn lines(&self) -> Vec<String> {
        let text = String::from_utf8_lossy(&self.drawn);
        let mut cells = vec![vec![' '; self.columns]; self.rows];
        let (mut row, mut column) = (0, 0);
        let mut chars = text.chars();
        while let Some(char) = chars.next() {
            match char {
                '\x1b' => {
                    if chars.next() != Some('[') {
                        continue;
                    }
                    let mut numbers = String::new();
                    let end = chars.by_ref().find(|&char| {
                        let is_end = ('@'..='~').contains(&char);
                        if !is_end {
                            numbers.push(char);
                        }
                        is_end
                    });
                    let mut at = numbers.split(';').map(|of| of.parse().unwrap_or(1_usize));
                    match end {
                        Some('H') => {
                            row = at.next().unwrap_or(1) - 1;
                            column = at.next().unwrap_or(1) - 1;
                        }
                        Some('J') => cells.iter_mut().for_each(|line| line.fill(' ')),
                        _ => {}
                    }
                }
                '\r' => column = 0,
                '\n' => row += 1,
                _ => {
                    if let Some(cell) = cells.get_mut(row).and_then(|line| line.get_mut(column)) {
                        *cell = char;
                    }
                    column += 1;
                }
            }
        }
        cells.iter().map(|line| line.iter().collect::<String>().trim_end().to_owned()).collect()
    }
}
