//! Fields of `/proc/PID/stat`, `statm`, `status` and `smaps_rollup`.

use std::fs;

use super::smaps::kib;
use crate::error::ReadError;

/// Field 22 of `/proc/PID/stat`: when the process started, in clock ticks since boot.
pub(super) fn start_time(pid: u32) -> Result<u64, ReadError> {
    let path = format!("/proc/{pid}/stat");
    let bytes = fs::read(&path).map_err(|e| ReadError::from_io(pid, &path, e))?;
    parse_start_time(&String::from_utf8_lossy(&bytes)).ok_or(ReadError::NoProcess { pid })
}

/// The name in field 2 may hold spaces and parentheses, so count from the last `)`.
fn parse_start_time(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(19)?.parse().ok()
}

pub(super) fn statm_resident(statm: &str) -> Option<u64> {
    let pages: u64 = statm.split_ascii_whitespace().nth(1)?.parse().ok()?;
    pages.checked_mul(4096)
}

pub(super) fn smaps_rss(smaps: &str) -> Option<u64> {
    smaps.lines().find_map(|l| l.strip_prefix("Rss:")).and_then(kib)
}

pub(super) fn inner_pid(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|l| l.strip_prefix("NSpid:"))?;
    line.split_ascii_whitespace().last()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_time_survives_odd_names() {
        let tail = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 777 20";
        assert_eq!(parse_start_time(&format!("12 (a) b) {tail}")), Some(777));
        assert_eq!(parse_start_time("12 (x"), None);
        assert_eq!(parse_start_time("12 (x) S 1"), None);
        assert!(start_time(std::process::id()).is_ok());
        assert!(matches!(start_time(0x7fff_fff0), Err(ReadError::NoProcess { .. })));
    }

    #[test]
    fn resident_fields() {
        assert_eq!(statm_resident("5 3 1 0 0 0 0\n"), Some(12288));
        assert_eq!(statm_resident("5"), None);
        assert_eq!(statm_resident("5 18446744073709551615"), None);
        assert_eq!(smaps_rss("55-77 ---p\nRss:       1848 kB\nPss: 1 kB\n"), Some(1848 * 1024));
        assert_eq!(smaps_rss("Rss: x kB"), None);
        assert_eq!(inner_pid("Name: a\nNSpid:\t100\t7\n"), Some(7));
    }
}
