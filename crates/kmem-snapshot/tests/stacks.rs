//! Rows as call stacks: the tree of callers, collapsed stacks, speedscope.

use std::sync::Arc;

use kmem_snapshot::books::StaticTag;
use kmem_snapshot::output::{Speedscope, write_folded};
use kmem_snapshot::report::write_tree;
use kmem_snapshot::sites::{Chain, Order, Origin, Site};
use kmem_snapshot::stacks::{By, Stacks, Tree};
use kmem_snapshot::symbols::Place;
use proptest::prelude::*;

fn place(function: &str) -> Arc<Place> {
    Arc::new(Place {
        module: "app".into(),
        offset: 0x10,
        function: (!function.is_empty()).then(|| function.into()),
        source: (!function.is_empty()).then(|| (format!("{function}.c"), 7)),
        ..Place::default()
    })
}

/// One row of the given chains, innermost call first, and one object of `more` bytes without a
/// chain.
fn row(chains: &[(&[&str], i64, u64)], more: i64) -> Site {
    let first = chains.first().map_or("alone", |chain| chain.0[0]);
    let chains: Vec<Chain> = chains
        .iter()
        .map(|&(frames, bytes, calls)| {
            let frames = frames.iter().map(|f| place(f)).collect();
            Chain { tag: 8, bytes, calls, frames }
        })
        .collect();
    Site {
        bytes: chains.iter().map(|c| c.bytes).sum::<i64>() + more,
        calls: chains.iter().map(|c| c.calls).sum::<u64>() + u64::from(more != 0),
        tags: vec![8],
        chains,
        ..Site::new(Origin::Place(Place::clone(&place(first))))
    }
}

fn example() -> Vec<Site> {
    let tag =
        StaticTag { file: "tag.c".into(), line: 3, function: "make".into(), ..Default::default() };
    vec![
        row(&[(&["alloc", "build", "main"], 4096, 4), (&["alloc", "load", "main"], 1000, 2)], 24),
        row(&[(&["other", "build", "main"], 2048, 1), (&["", "main"], 100, 1)], 0),
        Site { origin: Origin::Static(Arc::new(tag)), ..row(&[], 77) },
        Site { origin: Origin::NotTagged, ..row(&[], 3000) },
    ]
}

fn folded(sites: &[Site]) -> String {
    let mut out = Vec::new();
    write_folded(&mut out, &Stacks::of(sites, By::Name)).unwrap();
    String::from_utf8(out).unwrap()
}

fn tree(sites: &[Site], order: Order, most: usize, min: i64) -> String {
    shown(&Tree::of(sites), "CALL TREE", order, most, min)
}

fn shown(tree: &Tree<'_>, title: &str, order: Order, most: usize, min: i64) -> String {
    let lines = tree.lines(order, most, min);
    let mut out = Vec::new();
    write_tree(&mut out, title, &lines, tree.len() - lines.len()).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn collapsed_stacks_begin_at_the_outermost_call() {
    let expected = "main;build;alloc 4096
main;load;alloc 1000
alloc 24
main;build;other 2048
main;app+0x10 100
make 77
not_tagged 3000
";
    assert_eq!(folded(&example()), expected);
}

#[test]
fn names_in_collapsed_stacks_cannot_forge_frames_or_lines() {
    let evil = "f<A, B>;x\n1 \x1b[2J\t\u{a0}";
    let sites = [row(&[(&[evil, "main"], 5, 1), (&[evil, "main"], 6, 1)], 0)];
    assert_eq!(folded(&sites), "main;f<A,B>:x\\x0a1_\\x1b[2J\\x09_ 11\n");
    assert_eq!(folded(&[row(&[(&[" ", ";", "main"], 5, 1)], 0)]), "main;:;_ 5\n");
}

#[test]
fn the_tree_of_sources_has_modules_directories_files_and_calls() {
    let tag = |file: &str, line, function: &str, bytes| {
        let (file, function) = (file.to_owned(), function.to_owned());
        let tag = StaticTag { file, line, function, ..StaticTag::default() };
        Site { origin: Origin::Static(Arc::new(tag)), ..row(&[], bytes) }
    };
    let sites = [
        tag("src/a.c", 3, "make", 1000),
        tag("src/a.c", 9, "grow", 500),
        tag("src/b.c", 1, "make", 200),
        tag("lib/a.c", 3, "make", 100),
        tag("/top.c", 1, "main", 50),
        tag("flat.c", 1, "main", 40),
        tag("", 0, "nowhere", 30),
        Site { group: Some("/a".into()), ..tag("src/a.c", 3, "make", 20) },
        Site { origin: Origin::NotTagged, ..row(&[], 10) },
    ];
    let module = |at: usize| if at < 8 { "app".to_owned() } else { "(not tagged)".to_owned() };
    let modules: Vec<String> = (0..sites.len()).map(module).collect();
    let tree = Tree::by_source(&sites, &modules);
    let expected = "      SIZE   OBJECTS  SOURCE TREE
   1.9 KiB         7  app
   1.7 KiB         3    src
   1.5 KiB         2      a.c
    1000 B         1        make  src/a.c:3
     500 B         1        grow  src/a.c:9
     200 B         1      b.c
     200 B         1        make  src/b.c:1
     100 B         1    lib
     100 B         1      a.c
     100 B         1        make  lib/a.c:3
      50 B         1    top.c
      50 B         1      main  /top.c:1
      40 B         1    flat.c
      40 B         1      main  flat.c:1
      30 B         1    nowhere  :0
      20 B         1  /a
      20 B         1    app
      20 B         1      src
      20 B         1        a.c
      20 B         1          make  src/a.c:3
      10 B         1  (not tagged)
      10 B         1    not tagged
";
    assert_eq!(shown(&tree, "SOURCE TREE", Order::Size, 100, 0), expected);
}

#[test]
fn the_tree_is_sorted_by_size_and_indented() {
    let expected = "      SIZE   OBJECTS  CALL TREE
   7.1 KiB         8  main  main.c:7
   6.0 KiB         5    build  build.c:7
   4.0 KiB         4      alloc  alloc.c:7
   2.0 KiB         1      other  other.c:7
    1000 B         2    load  load.c:7
    1000 B         2      alloc  alloc.c:7
     100 B         1    ?  app+0x10
   2.9 KiB         1  not tagged
      77 B         1  make  tag.c:3
      24 B         1  alloc  alloc.c:7
";
    assert_eq!(tree(&example(), Order::Size, usize::MAX, i64::MIN), expected);
}

#[test]
fn the_tree_is_bounded_by_lines_and_size() {
    let expected = "      SIZE   OBJECTS  CALL TREE
   7.1 KiB         8  main  main.c:7
   6.0 KiB         5    build  build.c:7
   4.0 KiB         4      alloc  alloc.c:7
   2.9 KiB         1  not tagged
                      (6 more nodes)
";
    assert_eq!(tree(&example(), Order::Size, 4, i64::MIN), expected);
    assert_eq!(tree(&example(), Order::Size, usize::MAX, 2500), expected);
    let by_name = tree(&example(), Order::Tag, usize::MAX, 1000);
    let names: Vec<_> =
        by_name.lines().skip(1).filter_map(|l| l[22..].split_whitespace().next()).collect();
    assert_eq!(names, ["main", "build", "alloc", "other", "load", "alloc", "not", "(3"]);
    assert_eq!(tree(&[], Order::Size, 4, 0), "  (nothing)\n");
}

#[test]
fn speedscope_files_hold_stacks_of_places() {
    let sites = example();
    let file = Speedscope::of(&Stacks::of(&sites, By::Place), "app\x1b (pid 1)");
    let json = serde_json::to_value(&file).unwrap();
    assert_eq!(json["$schema"], "https://www.speedscope.app/file-format-schema.json");
    assert_eq!(json["name"], "app\\x1b (pid 1)");
    let profile = &json["profiles"][0];
    assert_eq!((&profile["type"], &profile["unit"]), (&"sampled".into(), &"bytes".into()));
    assert_eq!((&profile["startValue"], &profile["endValue"]), (&0.into(), &10345.into()));
    assert_eq!(profile["weights"], serde_json::json!([4096, 1000, 24, 2048, 100, 77, 3000]));
    let frame = |stack: usize, at: usize| {
        let number = profile["samples"][stack][at].as_u64().unwrap() as usize;
        json["shared"]["frames"][number].clone()
    };
    assert_eq!(frame(1, 1), serde_json::json!({ "name": "load", "file": "load.c", "line": 7 }));
    assert_eq!(frame(4, 1), serde_json::json!({ "name": "app+0x10" }));
    assert_eq!(frame(5, 0), serde_json::json!({ "name": "make", "file": "tag.c", "line": 3 }));
    assert_eq!(frame(0, 2), frame(2, 0));
}

/// Names of a chain's frames, bytes and calls.
fn chain() -> impl Strategy<Value = (Vec<String>, i64, u64)> {
    (proptest::collection::vec("[ab;\\n ]{0,2}", 1..5), 1..1000_i64, 1..9_u64)
}

#[test]
fn the_largest_number_of_objects_stands_for_minus_one_in_sums_and_orders() {
    let rows = [
        row(&[(&["alloc", "main"], -64, u64::MAX)], 0),
        row(&[(&["alloc", "main"], 192, 3)], 0),
        row(&[(&["load", "main"], 64, 1)], 0),
    ];
    let mut stacks = Stacks::of(&rows, By::Name);
    let counts = |of: &Stacks<'_>| of.stacks.iter().map(|s| (s.bytes, s.calls)).collect::<Vec<_>>();
    assert_eq!(counts(&stacks), [(128, 2), (64, 1)]);
    stacks = Stacks::of(&rows[..1], By::Name);
    assert_eq!(counts(&stacks), [(-64, u64::MAX)]);
    let tree = Tree::of(&rows);
    let nodes = tree.lines(Order::Calls, usize::MAX, i64::MIN);
    let nodes: Vec<_> =
        nodes.iter().map(|line| (line.node.frame.name(), line.node.calls)).collect();
    assert_eq!(nodes, [("main".into(), 3), ("alloc".into(), 2), ("load".into(), 1)]);

    let mut of_two = [rows[0].clone(), rows[2].clone()];
    let tree = Tree::of(&of_two);
    let nodes = tree.lines(Order::Calls, 2, i64::MIN);
    assert_eq!(nodes.last().unwrap().node.frame.name(), "load");
    let mut stacks = Stacks::of(&of_two, By::Name);
    stacks.sort(Order::Calls);
    assert_eq!(counts(&stacks), [(64, 1), (-64, u64::MAX)]);
    of_two.sort_by(|a, b| Order::Calls.compare(a, b));
    assert_eq!(of_two.map(|row| row.bytes), [64, -64]);
}

proptest! {
    #[test]
    fn nothing_is_lost_or_counted_twice(
        rows in proptest::collection::vec(
            (proptest::collection::vec(chain(), 0..4), 0..1000_i64),
            0..8,
        )
    ) {
        let sites: Vec<Site> = rows.iter().map(|(chains, more)| {
            let names: Vec<Vec<&str>> =
                chains.iter().map(|(f, ..)| f.iter().map(String::as_str).collect()).collect();
            let chains: Vec<_> =
                names.iter().zip(chains).map(|(f, c)| (f.as_slice(), c.1, c.2)).collect();
            row(&chains, *more)
        }).collect();
        let bytes: i64 = sites.iter().map(|s| s.bytes).sum();
        let calls: u64 = sites.iter().map(|s| s.calls).sum();
        let text = folded(&sites);
        let lines: Vec<(&str, i64)> = text.lines()
            .map(|line| line.split_once(' ').unwrap())
            .map(|(stack, bytes)| (stack, bytes.parse().unwrap()))
            .collect();
        prop_assert_eq!(lines.iter().map(|l| l.1).sum::<i64>(), bytes);
        let mut stacks: Vec<&str> = lines.iter().map(|l| l.0).collect();
        stacks.sort_unstable();
        stacks.dedup();
        prop_assert_eq!(stacks.len(), lines.len());
        let tree = Tree::of(&sites);
        for order in [Order::Size, Order::Calls, Order::Tag] {
            let all = tree.lines(order, usize::MAX, i64::MIN);
            prop_assert_eq!(all.len(), tree.len());
            let roots = || all.iter().filter(|l| l.depth == 0).map(|l| l.node);
            prop_assert_eq!(roots().map(|n| n.bytes).sum::<i64>(), bytes);
            prop_assert_eq!(roots().map(|n| n.calls).sum::<u64>(), calls);
            // Each line stands below its caller, however few lines are shown.
            for most in 0..tree.len() {
                let some = tree.lines(order, most, i64::MIN);
                prop_assert_eq!(some.len(), most);
                let mut depth = 0;
                for line in some {
                    prop_assert!(line.depth <= depth);
                    depth = line.depth + 1;
                }
            }
        }
    }
}
