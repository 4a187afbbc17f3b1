//! `kmem watch`: keeps the last books of processes, and writes a report when memory runs short and
//! when a process ends.
//!
//! A report is written while the process is there, or from the books of before its end. A process
//! that the kernel kills for lack of memory can no longer be asked.
//!
//! ```text
//! watcher   the loop: which processes, when each is read, what is waited for
//! subject   one process: its last books, its black box, how it ended
//! groups    control groups: counters of their events, and whose pressure counts
//! pressure  memory pressure, by a trigger or by sums
//! report    the content of a report
//! shelf     the directory of reports: names, how many are kept
//! cause     causes of reports
//! ```

mod cause;
mod groups;
mod pressure;
mod report;
mod shelf;
mod subject;
mod watcher;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use crate::failure::Failure;
use crate::format::Named;
use crate::options::{Chosen, interval};
use shelf::{Order, Shelf};
use watcher::Watcher;

/// Least and most time of waiting within a second that counts as pressure.
const STALL: [Duration; 2] = [Duration::from_millis(1), Duration::from_secs(1)];

/// Arguments of `kmem watch`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    chosen: Chosen,
    /// Write the reports into this directory, which is made if it is absent
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Read each process once in this time, such as 100ms or 5s. Readings take a quarter of a CPU
    /// at most
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: Duration,
    /// Report pressure when tasks of the control group, or of the machine, wait for memory for this
    /// time within a second
    #[arg(long, value_name = "TIME", default_value = "150ms", value_parser = stall)]
    pressure: Duration,
    /// Report a cause again for the same process after this time at the earliest
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = interval)]
    again: Duration,
    /// Also write the rows of each process once in this time, with the cause `interval`
    #[arg(long, value_name = "TIME", value_parser = interval)]
    every: Option<Duration>,
    /// Put the files into directories dt=DAY/service=NAME/host=HOST/build=ID, which engines for
    /// many files read as columns
    #[arg(long)]
    partitioned: bool,
    /// Keep at most N reports in the directory, the newest ones
    #[arg(long, value_name = "N", default_value = "100")]
    keep: NonZeroUsize,
    /// Watch at most N processes at once
    #[arg(long, value_name = "N", default_value = "20")]
    processes: NonZeroUsize,
    /// Write the rows in this format, instead of the report as text
    #[arg(long, value_enum)]
    format: Option<Named>,
    /// Print at most N rows per table, 10 without this option; with --format at most N in all,
    /// without this option all
    #[arg(short = 'n', long, value_name = "N")]
    lines: Option<usize>,
}

/// Parses the time of waiting within a second that counts as pressure.
fn stall(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if (STALL[0]..=STALL[1]).contains(&time) {
        Ok(time)
    } else {
        Err("a time from 1ms to 1s is needed".to_owned())
    }
}

pub(crate) fn main(args: &Args) -> Result<(), Failure> {
    let format = args.format.map(|Named(format)| format);
    let order = if args.partitioned { Order::Partitioned } else { Order::Flat };
    let shelf = Shelf::open(&args.output, args.keep.get(), format, order)?;
    Watcher::begin(args, shelf)?.run()
}
