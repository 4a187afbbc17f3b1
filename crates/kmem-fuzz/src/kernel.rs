//! Tables of the Linux kernel: slabinfo and zoneinfo.

use kmem_snapshot::doors;

use crate::Answer;
use crate::files::with_file;

/// Reads the bytes as either table.
pub(crate) fn tables(bytes: &[u8], answer: &mut Answer) {
    with_file(bytes, |path| {
        let path = path.to_str().expect("a path in ASCII");
        for read in [doors::slabinfo, doors::zoneinfo] {
            match read(path) {
                Ok(sums) => answer.say(sums),
                Err(error) => answer.fail(error),
            }
        }
    });
}
