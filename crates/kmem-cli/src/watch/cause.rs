//! Causes of reports.

use std::process::ExitStatus;

use std::os::unix::process::ExitStatusExt as _;

/// Cause of a report. The order is that of their weight: of several at one time the last counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Cause {
    /// The time of `--every` has passed.
    Interval,
    /// Tasks of the control group, or of the machine, waited for memory.
    Pressure,
    /// A group of kmem was above its `high`.
    GroupHigh,
    /// The control group was above its `high`.
    CgroupHigh,
    /// The control group was about to exceed its limit.
    CgroupMax,
    /// The control group could not stay below its limit.
    CgroupOom,
    /// The kernel killed a process of the control group.
    CgroupOomKill,
    /// The process ended, and it is not known how.
    End,
    /// The process exited.
    Exit,
    /// A signal ended the process.
    Signal,
    /// The kernel killed the process for lack of memory.
    OomKill,
}

impl Cause {
    pub(super) const ALL: [Self; 11] = [
        Self::Interval,
        Self::Pressure,
        Self::GroupHigh,
        Self::CgroupHigh,
        Self::CgroupMax,
        Self::CgroupOom,
        Self::CgroupOomKill,
        Self::End,
        Self::Exit,
        Self::Signal,
        Self::OomKill,
    ];

    /// Its name in the name of a report.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Interval => "interval",
            Self::Pressure => "pressure",
            Self::GroupHigh => "group-high",
            Self::CgroupHigh => "cgroup-high",
            Self::CgroupMax => "cgroup-max",
            Self::CgroupOom => "cgroup-oom",
            Self::CgroupOomKill => "cgroup-oom-kill",
            Self::End => "end",
            Self::Exit => "exit",
            Self::Signal => "signal",
            Self::OomKill => "oom-kill",
        }
    }

    /// That of an end. `kills`: the kernel killed processes of the control group just before.
    pub(super) fn of_end(status: Option<ExitStatus>, kills: bool) -> Self {
        match status {
            Some(status) if status.signal() == Some(libc::SIGKILL) && kills => Self::OomKill,
            Some(status) if status.signal().is_some() => Self::Signal,
            Some(_) => Self::Exit,
            None if kills => Self::OomKill,
            None => Self::End,
        }
    }
}

/// An occasion for a report: its cause, and a sentence without its subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Occasion {
    pub(super) cause: Cause,
    pub(super) what: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_kill_signal_is_blamed_on_the_lack_of_memory() {
        let of = |raw| Some(ExitStatus::from_raw(raw));
        assert_eq!(Cause::of_end(of(libc::SIGKILL), true), Cause::OomKill);
        assert_eq!(Cause::of_end(of(libc::SIGKILL), false), Cause::Signal);
        assert_eq!(Cause::of_end(of(libc::SIGSEGV), true), Cause::Signal);
        assert_eq!(Cause::of_end(of(3 << 8), true), Cause::Exit);
        assert_eq!(
            (Cause::of_end(None, true), Cause::of_end(None, false)),
            (Cause::OomKill, Cause::End)
        );
    }

    #[test]
    fn causes_have_names_of_their_own() {
        let mut names = Cause::ALL.map(Cause::name).to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Cause::ALL.len());
    }
}
