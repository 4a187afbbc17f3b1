use super::*;

fn origin(module: &str, file: &str, line: u32, function: &str) -> Origin {
    Origin::Place(Place {
        module: module.into(),
        main: module == "app",
        offset: 0x10,
        address: 0,
        function: Some(function.into()),
        source: Some((file.into(), line)),
    })
}

fn patterns(texts: &[&str]) -> Vec<Pattern> {
    texts.iter().map(|t| Pattern::new(t)).collect()
}

#[test]
fn a_pattern_is_the_name_or_a_glob_for_it() {
    for (pattern, name, expected) in [
        ("main", "main", true),
        ("main", "main2", false),
        ("main", "Main", false),
        ("ma*", "main", true),
        ("m?in", "main", true),
        ("m?in", "min", false),
        ("*.c", "/src/deep/a.c", true),
        ("*", "", true),
        ("?", "", false),
        ("", "", true),
        ("", "x", false),
        ("operator*", "operator*", true),
        ("std::vector<char*>::f", "std::vector<char*>::f", true),
        ("[ab]", "a", false),
    ] {
        assert_eq!(Pattern::new(pattern).matches(name), expected, "{pattern} {name}");
    }
}

#[test]
fn what_a_kernel_keeps_of_a_long_text_matches_it() {
    let long = format!("/{}/end.c", "d".repeat(100));
    let kept = &long[long.len() - 63..];
    assert!(Pattern::new(kept).matches(&long));
    assert!(!Pattern::new(&kept[1..]).matches(&long));
}

#[test]
fn conditions_combine_by_and_and_values_by_or() {
    let app = origin("app", "/src/a.c", 7, "f");
    let library = origin("libx.so", "/src/b.c", 7, "g");
    let untagged = Origin::NotTagged;
    let own = Origin::Static(Arc::new(StaticTag {
        module: String::new(),
        file: "/src/a.c".into(),
        line: 9,
        function: "f".into(),
    }));
    let admitted = |filter: &Filter| {
        [&app, &library, &untagged, &own].map(|origin| filter.admits(origin, "app")).to_vec()
    };
    let none = Filter::default();
    assert_eq!((none.is_on(), admitted(&none)), (false, vec![true, true, true, true]));
    let both = Filter { function: patterns(&["f", "g"]), ..Filter::default() };
    assert_eq!((both.is_on(), admitted(&both)), (true, vec![true, true, false, true]));
    let module = Filter { module: patterns(&["app"]), ..both.clone() };
    assert_eq!(admitted(&module), [true, false, false, true]);
    let line = Filter { line: vec![8, 7], ..Filter::default() };
    assert_eq!(admitted(&line), [true, true, false, false]);
    let file = Filter { file: patterns(&["*/b.c"]), line: vec![8], ..Filter::default() };
    assert_eq!(admitted(&file), [false; 4]);
    let reserved = Filter { function: patterns(&["not_tagged"]), ..Filter::default() };
    assert_eq!(admitted(&reserved), [false, false, true, false]);
}

#[test]
fn sizes_are_a_range_with_both_ends() {
    let filter = Filter { min: Some(10), max: Some(20), ..Filter::default() };
    assert!(filter.is_on());
    assert_eq!([9, 10, 20, 21].map(|b| filter.admits_size(b)), [false, true, true, false]);
    assert!(Filter::default().admits_size(i64::MIN));
}
