//! Groups, and the charge of objects.

use kmem_core::memcg::GroupId;
use kmem_core::os::Platform;
use kmem_core::units::ObjcgId;
use kmem_core::{Group, Instance};

/// Bytes that are charged for the extension word of an object or page.
const METADATA: u64 = 4;

/// A new group below the root.
pub(crate) fn group<P: Platform>(instance: &'static Instance<P>, name: &str) -> Group<P> {
    let id = instance.group_create(GroupId::ROOT, name.as_bytes()).expect("a new group");
    instance.group(id).expect("it is there")
}

/// Charge of an allocation with this many usable bytes. Above 32 KiB each page is charged.
pub(crate) const fn cost(usable: u64) -> u64 {
    if usable > 32 << 10 { usable / 4096 * (4096 + METADATA) } else { usable + METADATA }
}

/// Bytes with metadata, and number, of the live objects whose words name a group.
fn live<P: Platform>(instance: &'static Instance<P>, objcg: ObjcgId) -> (u64, u64) {
    let mut sum = (0, 0);
    instance.census_by_group(|held| {
        if held.objcg == objcg {
            sum = (sum.0 + held.charged(), sum.1 + held.calls);
        }
    });
    sum
}

/// Checks that a group is charged what its objects' words say, and that it has `held` objects.
#[track_caller]
pub(crate) fn agrees<P: Platform>(
    instance: &'static Instance<P>,
    group: &Group<P>,
    held: usize,
    when: &str,
) {
    assert_eq!(instance.validate_groups(), Ok(()), "{when}");
    let (bytes, count) = live(instance, group.id().objcg());
    assert_eq!((group.stat().current, count), (bytes, held as u64), "{when}");
}
