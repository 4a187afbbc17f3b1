//! Texts of `/proc/PID`: `maps`, `smaps`, `cgroup`, `mountinfo`.

use kmem_snapshot::maps::{Maps, Smaps};

use crate::Answer;

#[path = "../../kmem-cli/src/cgroup.rs"]
mod cgroup;

/// Reads the bytes as each of the texts. A zero byte is between the control groups and the mounts.
pub(crate) fn read(bytes: &[u8], answer: &mut Answer) {
    let text = String::from_utf8_lossy(bytes);
    let maps = Maps::parse(&text);
    for mapping in maps.all() {
        let found = maps.find(mapping.start).map(|found| found.end);
        let readable = maps.readable_memory_at(mapping.start, u64::MAX);
        let overlapping = maps.overlapping(mapping.start..mapping.end).count();
        answer.say(format!("{} {found:?} {readable} {overlapping}", mapping.path));
    }
    if let Some(smaps) = Smaps::parse(&text) {
        let mut likely = 0_u64;
        for mapping in maps.all().iter().take(100) {
            let len = mapping.end - mapping.start;
            smaps.likely(mapping.start, len, |part| likely ^= part.start ^ part.end);
        }
        answer.say(likely);
    }
    let (groups, mounts) = text.split_once('\0').unwrap_or((&text, &text));
    answer.say(format!("{:?}", cgroup::memory_file(groups, mounts)));
    answer.say(format!("{:?}", cgroup::unified(groups, mounts)));
}
