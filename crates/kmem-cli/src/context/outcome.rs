//! Results of telling callers apart so far, with advice where that is nothing.

use std::thread;
use std::time::{Duration, Instant};

use kmem_snapshot::Target;
use kmem_snapshot::reading::{CallSite, ToldApart};

use crate::failure::Failure;

/// First interval between readings; each next one is twice as long.
const FIRST: Duration = Duration::from_millis(20);

/// Knowledge about the callers of a call site.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The number of chains of callers, which is more than one.
    Apart(usize),
    /// All objects are of one chain of callers.
    One(u64),
    /// Objects came through the call site, and their callers cannot be found.
    NoCallers,
    /// No object came through the call site that is still in use.
    Nothing,
}

impl Outcome {
    /// The outcome by what the call site holds now. `before` is what it held at the start, if that
    /// is known.
    pub(super) fn of(now: ToldApart, before: Option<ToldApart>) -> Self {
        match now.chains {
            0 if before.is_some_and(|before| now.alone > before.alone) => Self::NoCallers,
            0 => Self::Nothing,
            1 => Self::One(now.objects),
            chains => Self::Apart(chains),
        }
    }

    /// The outcome in words, with what to do.
    pub(super) fn text(self, pid: u32, depth: u32) -> String {
        match self {
            Self::Apart(chains) => {
                format!("{chains} callers are told apart; kmem top -p {pid} --tree shows them")
            }
            Self::One(objects) => format!(
                "nothing is told apart: all {objects} objects have one caller within {depth} \
                 calls. More than {depth} (--depth) may show others, unless the program calls \
                 from one place"
            ),
            Self::NoCallers => "nothing is told apart: the callers of this call site cannot be \
                                found. Build the program with unwind tables \
                                (-fasynchronous-unwind-tables) or frame pointers \
                                (-fno-omit-frame-pointer)"
                .to_owned(),
            Self::Nothing => format!(
                "nothing is told apart: no object that is still in use came through the call \
                 site. Let the program work, and ask again: kmem context -p {pid}"
            ),
        }
    }
}

/// Reads the callers of a call site.
pub(super) fn read(pid: u32, of: &CallSite) -> Result<ToldApart, Failure> {
    let (snapshot, _) = Target::Process(pid).snapshot()?;
    Ok(snapshot.told_apart(of.root, &of.addresses))
}

/// Watches until callers are told apart, the process has ended, or the time is over.
pub(super) fn watch(pid: u32, of: &CallSite, before: ToldApart, patience: Duration) -> Outcome {
    let end = Instant::now() + patience;
    let mut pause = FIRST;
    let mut last = Outcome::Nothing;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        thread::sleep(pause.min(left));
        pause *= 2;
        let Ok(now) = read(pid, of) else { return last };
        last = Outcome::of(now, Some(before));
        if left.is_zero() || matches!(last, Outcome::Apart(_)) {
            return last;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_that_shows_nothing_says_what_to_do() {
        let with = |chains, objects, alone| ToldApart { chains, objects, alone };
        let before = Some(with(0, 0, 5));
        for (now, outcome, advice) in [
            (with(2, 9, 5), Outcome::Apart(2), "kmem top -p 7 --tree"),
            (with(1, 9, 5), Outcome::One(9), "More than 3 (--depth)"),
            (with(0, 0, 6), Outcome::NoCallers, "-fno-omit-frame-pointer"),
            (with(0, 0, 5), Outcome::Nothing, "kmem context -p 7"),
        ] {
            assert_eq!(Outcome::of(now, before), outcome);
            assert!(outcome.text(7, 3).contains(advice), "{outcome:?}");
        }
        assert_eq!(Outcome::of(with(0, 0, 6), None), Outcome::Nothing);
    }
}
