//! Every reader of input that may be damaged or hostile, as a function of bytes.
//!
//! ```text
//! fuzz/fuzz_targets/*.rs ──┐
//!                          ├──> check() ──> a Reader ──> kmem-snapshot, kmem-module, kmem-core
//! tests/corpus.rs ─────────┘
//! ```
//!
//! [`check`] runs one reader on one input and holds it to the promise of all readers:
//!
//! - It does not panic.
//! - It takes at most [`MOST_TIME`] and [`MOST_MEMORY`].
//! - What it shows has no control characters.
//! - An error names what is wrong and where.
//!
//! The fuzz targets and the corpora are in `fuzz/`, see `scripts/fuzz.sh`. The tests of this crate
//! run the corpora, and damaged copies of them.

mod board;
mod failure;
mod files;
mod http;
mod image;
mod kernel;
mod modules;
mod process;
mod python;
mod settings;
mod symbols;

use std::io::{self, Write};
use std::time::Duration;

use peak_alloc::PeakAlloc;
use rustix::time::{ClockId, clock_gettime};

/// Most processor time of a reader on one input.
pub const MOST_TIME: Duration = Duration::from_secs(1);
/// Most memory of a reader on one input, in bytes: the most that is allocated at once.
pub const MOST_MEMORY: usize = 64 << 20;

/// Counts the memory of the whole program, so one reader runs at a time.
#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Texts that a reader made of its input.
#[derive(Debug, Default)]
pub struct Answer {
    /// Texts for a terminal.
    pub shown: Shown,
    /// Errors.
    pub errors: Vec<String>,
}

impl Answer {
    fn fail(&mut self, error: impl ToString) {
        self.errors.push(error.to_string());
    }

    /// Adds a text as the command prints its messages.
    fn say(&mut self, text: impl ToString) {
        self.show(kmem_snapshot::escape::printable(&text.to_string()).as_bytes());
        self.show(b"\n");
    }

    /// Adds a text as it is.
    fn show(&mut self, text: &[u8]) {
        self.shown.write_all(text).expect("nothing is kept");
    }

    /// Adds a failure, and what is shown of it.
    fn failure(&mut self, failure: kmem_snapshot::ReadFailure) {
        failure.notes.iter().for_each(|note| self.say(note));
        self.fail(failure.error);
    }
}

/// Texts for a terminal. They are checked and not kept.
#[derive(Debug, Default)]
pub struct Shown {
    /// The last bytes.
    last: Vec<u8>,
}

impl Write for Shown {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for &byte in bytes {
            // In UTF-8, control characters are bytes below a blank, 0x7f, and two bytes from
            // 0xc2 0x80 to 0xc2 0x9f. Lines of CSV end with 0x0d 0x0a.
            let is_control = match self.last.last() {
                Some(0x0d) => byte != b'\n',
                Some(0xc2) => (0x80..0xa0).contains(&byte),
                _ => byte < b' ' && !matches!(byte, b'\n' | b'\t' | b'\r') || byte == 0x7f,
            };
            self.last.push(byte);
            assert!(
                !is_control,
                "a control character is shown: {:?}",
                String::from_utf8_lossy(&self.last)
            );
            if self.last.len() == 200 {
                self.last.drain(..100);
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A reader.
#[derive(Debug, Clone, Copy)]
pub struct Reader {
    /// Name of its fuzz target and of the directory with its corpus.
    pub name: &'static str,
    /// Reads these bytes.
    pub read: fn(&[u8], &mut Answer),
}

/// All readers, by name.
pub const READERS: &[Reader] = &[
    Reader { name: "allocinfo", read: files::allocinfo },
    Reader { name: "blackbox", read: image::blackbox },
    Reader { name: "board", read: board::read },
    Reader { name: "books", read: image::books },
    Reader { name: "core", read: files::core },
    Reader { name: "depmod", read: modules::depmod },
    Reader { name: "http", read: http::read },
    Reader { name: "kernel_log", read: files::kernel_log },
    Reader { name: "kernel_tables", read: kernel::tables },
    Reader { name: "module", read: modules::module },
    Reader { name: "packed", read: modules::packed },
    Reader { name: "perf_map", read: symbols::perf_map },
    Reader { name: "process", read: process::read },
    Reader { name: "python", read: python::read },
    Reader { name: "recording", read: files::recording },
    Reader { name: "settings", read: settings::read },
    Reader { name: "symbols", read: symbols::read },
];

/// The reader of this name.
#[must_use]
pub fn reader(name: &str) -> Option<&'static Reader> {
    READERS.iter().find(|reader| reader.name == name)
}

/// Runs a reader on an input, and returns what it says.
///
/// # Panics
///
/// When the reader breaks a promise.
pub fn check(reader: &Reader, input: &[u8]) -> Answer {
    let before = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    let began = processor_time();
    let mut answer = Answer::default();
    (reader.read)(input, &mut answer);
    let time = processor_time().saturating_sub(began);
    let memory = MEMORY.peak_usage().saturating_sub(before);
    assert!(time <= MOST_TIME, "{}: {time:?} of processor time", reader.name);
    assert!(memory <= MOST_MEMORY, "{}: {memory} bytes of memory", reader.name);
    for error in &answer.errors {
        assert!(names_place(error), "{}: names no place: {error:?}", reader.name);
    }
    answer
}

/// Processor time of the program: the machine may have other work.
fn processor_time() -> Duration {
    clock_gettime(ClockId::ProcessCPUTime).try_into().unwrap_or_default()
}

/// True for an error that names a file, an address, a line, an offset, or a process.
fn names_place(error: &str) -> bool {
    ["/", "0x", "line ", "offset ", "byte ", "process ", "section ", "symbol ", "\""]
        .iter()
        .any(|place| error.contains(place))
}
