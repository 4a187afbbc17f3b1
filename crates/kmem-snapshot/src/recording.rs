//! A recording: the rows of a process or a kernel at many moments, in one file.
//!
//! ```text
//! wire    frames and messages, as they are in the file
//! moment  what is known of one moment
//! write   strings once, changes of rows, key frames
//! read    an index of the file; moments out of it
//! ```
//!
//! The format is described in `docs/recordings.md`. A file that was cut off is read up to its last
//! whole frame. A file is hostile: all counts and lengths are bounded before memory is taken.

mod moment;
mod read;
mod wire;
mod write;

use std::str::FromStr;
use std::time::Duration;

pub use moment::{Held, Moment};
pub use read::{Name, Recording};
pub use wire::{About, Class, MAGIC, VERSION};
pub use write::Writer;

/// A moment of a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum At {
    /// The first one.
    First,
    /// The one with most live bytes.
    Peak,
    /// The last one.
    #[default]
    Last,
    /// The last one that is no later than this after the first.
    After(Duration),
}

impl FromStr for At {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "first" => Self::First,
            "peak" => Self::Peak,
            "last" => Self::Last,
            _ => Self::After(humantime::parse_duration(text.trim_start_matches('+')).map_err(
                |_| format!("{text:?} is no moment: first, peak, last, or a time such as 90s"),
            )?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_a_word_or_a_time_since_the_first_one() {
        let after = |ms| Ok(At::After(Duration::from_millis(ms)));
        assert_eq!("peak".parse(), Ok(At::Peak));
        assert_eq!("+1m 30s".parse(), after(90_000));
        assert_eq!("250ms".parse(), after(250));
        assert!("soon".parse::<At>().unwrap_err().contains("no moment"));
    }
}
