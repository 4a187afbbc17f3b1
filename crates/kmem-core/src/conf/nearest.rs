//! The option that a misspelt name may mean.

use super::{ConfOption, OPTIONS};

/// Longest name that is compared, in bytes.
const LONGEST: usize = 24;

/// The option with this name, or else the one whose name is nearest, if it is near.
///
/// # Examples
/// ```
/// use kmem_core::conf::nearest;
///
/// assert_eq!(nearest(b"dept").map(|option| option.name), Some("depth"));
/// assert!(nearest(b"fast").is_none());
/// ```
pub fn nearest(name: &[u8]) -> Option<&'static ConfOption> {
    let with_distance = |option: &'static ConfOption| {
        let distance = distance(name, option.name.as_bytes())?;
        // A third of a name may be wrong, but no more than two letters.
        (distance <= 2 && distance * 3 <= option.name.len()).then_some((distance, option))
    };
    let near = OPTIONS.iter().filter_map(with_distance);
    near.min_by_key(|(distance, _)| *distance).map(|(_, option)| option)
}

/// Least number of changes that make one name the other (optimal string alignment). A change adds,
/// removes or replaces a letter, or swaps two neighbours. `None`: a name is too long.
fn distance(a: &[u8], b: &[u8]) -> Option<usize> {
    if a.len() > LONGEST || b.len() > LONGEST {
        return None;
    }
    // Rows for the first letters of `a`: the last two, and the current one.
    let (mut before, mut last) = ([0; LONGEST + 1], [0; LONGEST + 1]);
    last.iter_mut().enumerate().for_each(|(at, cell)| *cell = at);
    for (i, &letter) in a.iter().enumerate() {
        let mut row = [i + 1; LONGEST + 1];
        for (j, &other) in b.iter().enumerate() {
            let replaced = last[j] + usize::from(letter != other);
            row[j + 1] = replaced.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && letter == b[j - 1] && a[i - 1] == other {
                row[j + 1] = row[j + 1].min(before[j - 1] + 1);
            }
        }
        (before, last) = (last, row);
    }
    Some(last[b.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_count_letters() {
        for (a, b, letters) in [
            ("", "", 0),
            ("depth", "depth", 0),
            ("dept", "depth", 1),
            ("rseqq", "rseq", 1),
            ("profilign", "profiling", 1),
            ("peek", "peak", 1),
            ("abc", "xyz", 3),
            ("", "abc", 3),
        ] {
            assert_eq!(distance(a.as_bytes(), b.as_bytes()), Some(letters), "{a} {b}");
            assert_eq!(distance(b.as_bytes(), a.as_bytes()), Some(letters), "{b} {a}");
        }
    }

    #[test]
    fn every_option_is_nearest_to_its_own_name_and_to_no_other() {
        for option in OPTIONS {
            assert_eq!(nearest(option.name.as_bytes()).map(|near| near.name), Some(option.name));
        }
        assert!(nearest(b"").is_none() && nearest(&[b'x'; 100]).is_none());
    }
}
