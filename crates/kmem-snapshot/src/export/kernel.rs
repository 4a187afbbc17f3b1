//! The families of the kernel.

use super::rows::{Rows, Sum};
use super::text::{Metric, Page, Value, labels};
use crate::reading::{Query, ReadFailure, Target};
use crate::sites::Site;

/// Reads a kernel, and writes its call sites.
pub(super) fn write(
    target: &Target,
    shown: &mut Rows,
    most: usize,
    page: &mut Page,
) -> Result<(), ReadFailure> {
    let reading = target.read(&Query::default())?;
    let of = |site: &Site| (site_labels(&[], site), sum(site));
    let other = labels(&[("site", "other")]);
    for (labels, sum) in shown.choose(reading.sites.iter().map(of), most, other) {
        page.add(Metric::KernelBytes, labels.clone(), Value::Signed(sum.bytes));
        page.add(Metric::KernelObjects, labels, Value::Signed(sum.objects));
    }
    Ok(())
}

pub(super) fn sum(site: &Site) -> Sum {
    Sum { bytes: site.bytes, objects: site.calls.cast_signed() }
}

/// The labels `site`, `func` and `module`, behind others.
pub(super) fn site_labels(before: &[(&str, &str)], site: &Site) -> String {
    let tag = site.origin.tag();
    let place = if tag.line == 0 { tag.file } else { format!("{}:{}", tag.file, tag.line) };
    let module = tag.module.unwrap_or_default();
    let own = [("site", &*place), ("func", &*tag.function), ("module", &*module)];
    labels(&[before, &own].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::Exposition;

    #[test]
    fn the_sites_of_a_kernel_add_up_to_its_text() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/allocinfo-6.12.txt");
        let text = std::fs::read_to_string(path).expect("the text of a kernel");
        let rows = text.lines().skip(2).filter_map(|row| row.split_whitespace().next());
        let sum: i64 = rows.map(|bytes| bytes.parse::<i64>().expect("a size")).sum();
        let mut page = Page::default();
        write(&Target::List(path.into()), &mut Rows::default(), 10, &mut page).expect("rows");
        let page = page.write(Exposition::Prometheus);
        let samples = page.lines().filter(|line| line.starts_with("kernel_allocinfo_bytes{"));
        let values: Vec<i64> = samples
            .map(|line| line.rsplit(' ').next().expect("a value").parse().expect("a number"))
            .collect();
        assert_eq!((values.len(), values.iter().sum()), (11, sum), "{page}");
        assert!(page.contains("{site=\"mm/slub.c:2478\",func=\"alloc_slab_page\"}"), "{page}");
    }
}
