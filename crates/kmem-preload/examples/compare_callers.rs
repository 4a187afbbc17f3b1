//! Compares chains of callers that kmem recorded with those that unwinders found in the same
//! places. `scripts/compare-callers.sh` runs it.
//!
//! ```text
//! compare_callers FILE PID LEAST
//! ```
//!
//! FILE has the samples that `tests/programs/callers/sampler.c` took in process PID. Prints one
//! line of counts. Fails if there are fewer than LEAST chains. Also fails if a chain is cut, goes
//! further, or is wrong. Then it prints examples.
//!
//! | a recorded chain is | condition |
//! |---|---|
//! | equal | it is the chain of libgcc, or that of libunwind where that one knows more callers |
//! | early | it ends before that chain does, in code without a table of frames |
//! | cut | it ends before that chain does, in other code |
//! | further | it goes on where neither unwinder found a caller |
//! | wrong | everything else |

use std::collections::BTreeMap;
use std::ops::Range;
use std::process::ExitCode;

use kmem_snapshot::symbols::{Modules, Symbols};
use kmem_snapshot::{Process, Snapshot};

/// Room for return addresses in the file.
const DEPTH: usize = 32;
/// Words of a sample in the file: two chains, each with its length first.
const SAMPLE: usize = 2 * (1 + DEPTH);
/// Examples to print of each kind.
const EXAMPLES: usize = 2;

type Chain = Vec<u64>;

/// The callers that libgcc and libunwind found.
type Found = (Chain, Chain);

/// The samples in the file: the bounds of the sampling code, and the callers of that code.
fn samples(path: &str) -> (Range<u64>, BTreeMap<Found, u64>) {
    let bytes = std::fs::read(path).expect("the file of samples");
    let mut words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word));
    let mut word = || words.next().expect("a whole file of samples");
    let (sampler, used) = (word()..word(), word() as usize);
    let used = used.min((bytes.len() / 8 - 3) / SAMPLE);
    let mut found = BTreeMap::new();
    for _ in 0..used {
        let mut chain = || {
            let len = word() as usize;
            let returns: Chain = (0..DEPTH).map(|_| word()).collect();
            // The first address is in the sampling code itself.
            returns[..len].get(1..).unwrap_or_default().to_vec()
        };
        *found.entry((chain(), chain())).or_default() += 1;
    }
    (sampler, found)
}

/// The chains of allocations by the sampling code, from its caller outwards.
fn recorded(snapshot: &Snapshot, sampler: &Range<u64>) -> BTreeMap<Chain, u64> {
    let mut chains = BTreeMap::new();
    for row in snapshot.books.iter().flat_map(|books| &books.rows) {
        if let [first, callers @ ..] = row.key.addresses()
            && sampler.contains(first)
        {
            *chains.entry(callers.to_vec()).or_default() += row.calls;
        }
    }
    chains
}

/// Relation of a recorded chain to a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Relation {
    Equal,
    Early,
    Cut,
    Further,
    Wrong,
}

/// `is_made` says whether code was made at run time.
fn relation(chain: &Chain, (libgcc, libunwind): &Found, is_made: impl Fn(u64) -> bool) -> Relation {
    // libunwind knows more where frame pointers alone lead on. Elsewhere libgcc knows better.
    let knows_more = libunwind.len() > libgcc.len() && libunwind.starts_with(libgcc);
    let best = if knows_more { libunwind } else { libgcc };
    match () {
        () if chain == best => Relation::Equal,
        // libgcc knows no frames without a table, except those that the compiler told it.
        () if best.starts_with(chain) => match chain.last() {
            Some(&last) if chain.len() >= libgcc.len() || is_made(last) => Relation::Early,
            _ => Relation::Cut,
        },
        () if chain.starts_with(best) => Relation::Further,
        () => Relation::Wrong,
    }
}

/// Pairs of recorded chains and samples.
#[derive(Default)]
struct Pairs {
    counts: BTreeMap<Relation, u64>,
    /// Pairs that are not equal, and how many there are.
    others: Vec<(Relation, Chain, Found, u64)>,
}

impl Pairs {
    /// Pairs each recorded chain with a sample. Few chains are left after those that are equal, and
    /// the longest one of them has the fewest samples to choose from.
    fn of(
        mut recorded: BTreeMap<Chain, u64>,
        mut samples: BTreeMap<Found, u64>,
        is_made: impl Fn(u64) -> bool,
    ) -> Self {
        let mut pairs = Self::default();
        for relation in [Relation::Equal, Relation::Early, Relation::Cut, Relation::Further] {
            let mut chains: Vec<_> = recorded.iter_mut().collect();
            chains.sort_by_key(|(chain, _)| std::cmp::Reverse(chain.len()));
            for (chain, count) in chains {
                pairs.take(relation, chain, count, &mut samples, &is_made);
            }
            recorded.retain(|_, count| *count > 0);
            samples.retain(|_, count| *count > 0);
        }
        for (chain, mut count) in recorded {
            // The sample that it is nearest to.
            let common = |found: &Found| {
                found.0.iter().zip(&chain).take_while(|(one, other)| one == other).count()
            };
            let nearest = samples.keys().max_by_key(|found| common(found)).cloned();
            let nearest = nearest.unwrap_or_default();
            pairs.add(Relation::Wrong, &chain, &nearest, std::mem::take(&mut count));
        }
        pairs
    }

    fn take(
        &mut self,
        wanted: Relation,
        chain: &Chain,
        count: &mut u64,
        samples: &mut BTreeMap<Found, u64>,
        is_made: impl Fn(u64) -> bool,
    ) {
        for (found, left) in samples.iter_mut() {
            if *count > 0 && *left > 0 && relation(chain, found, &is_made) == wanted {
                let both = (*count).min(*left);
                *count -= both;
                *left -= both;
                self.add(wanted, chain, found, both);
            }
        }
    }

    fn add(&mut self, relation: Relation, chain: &Chain, found: &Found, count: u64) {
        *self.counts.entry(relation).or_default() += count;
        if relation != Relation::Equal {
            self.others.push((relation, chain.clone(), found.clone(), count));
        }
    }

    fn count(&self, relation: Relation) -> u64 {
        self.counts.get(&relation).copied().unwrap_or(0)
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, pid, least] = &arguments[..] else {
        eprintln!("usage: compare_callers FILE PID LEAST");
        return ExitCode::from(2);
    };
    let least: u64 = least.parse().expect("a number");
    let process = Process::open(pid.parse().expect("a number")).expect("a process under kmem");
    let snapshot = Snapshot::take(&process).expect("its books");
    let (sampler, samples) = samples(path);
    let chains = recorded(&snapshot, &sampler);
    let distinct = chains.len();
    let frames: u64 = chains.iter().map(|(chain, count)| chain.len() as u64 * count).sum();
    let by_pointer: u64 = samples
        .iter()
        .filter(|((libgcc, libunwind), _)| {
            libunwind.len() > libgcc.len() && libunwind.starts_with(libgcc)
        })
        .map(|(_, count)| count)
        .sum();
    let (taken, kept) = (samples.values().sum::<u64>(), chains.values().sum::<u64>());
    let is_made = |ret: u64| {
        let mapping = snapshot.maps.find(ret);
        !mapping.is_some_and(|mapping| mapping.path.starts_with('/'))
    };
    let mut pairs = Pairs::of(chains, samples, is_made);
    let compared: u64 = pairs.counts.values().sum();
    let percent = |count: u64| 100.0 * count as f64 / compared.max(1) as f64;
    let kinds = [Relation::Early, Relation::Cut, Relation::Further, Relation::Wrong];
    let [early, cut, further, wrong] = kinds.map(|kind| pairs.count(kind));
    println!(
        "{compared} chains compared, {early} ended early ({:.2} %), {} wrong \
         ({distinct} distinct, {:.1} callers, {by_pointer} beyond libgcc)",
        percent(early),
        cut + further + wrong,
        frames as f64 / compared.max(1) as f64,
    );
    let mut passed = cut + further + wrong == 0;
    if taken != kept {
        println!("  {taken} samples were taken, and kmem has {kept}");
        passed = false;
    }
    if compared < least {
        println!("  fewer than {least}");
        passed = false;
    }
    if passed {
        return ExitCode::SUCCESS;
    }

    let addresses: Vec<u64> = pairs
        .others
        .iter()
        .flat_map(|(_, chain, (libgcc, libunwind), _)| [chain, libgcc, libunwind])
        .flatten()
        .copied()
        .collect();
    let modules = Modules::open(&process, &snapshot.maps, &addresses, &snapshot.budget);
    let mut symbols = Symbols::new(&modules);
    pairs.others.sort_by_key(|other| std::cmp::Reverse((other.0, other.3)));
    let mut printed = BTreeMap::<Relation, usize>::new();
    for (relation, chain, (libgcc, libunwind), count) in &pairs.others {
        let printed = printed.entry(*relation).or_default();
        *printed += 1;
        if *printed > EXAMPLES {
            continue;
        }
        println!("  {relation:?}, {count} times:");
        for (name, chain) in [("kmem", chain), ("libgcc", libgcc), ("libunwind", libunwind)] {
            let names = chain.iter().map(|&ret| {
                let place = symbols.resolve(ret);
                let function = place.function.clone().unwrap_or_default();
                format!("{} {function}", place.in_module())
            });
            println!("    {name:9} {}", names.collect::<Vec<_>>().join(" < "));
        }
    }
    ExitCode::FAILURE
}
