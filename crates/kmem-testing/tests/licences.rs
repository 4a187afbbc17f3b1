//! A guard over the packages: each has the texts of its licences.

use kmem_testing::tree;

/// A link to the text would be a file with a path in it where links are not kept.
#[test]
fn every_package_that_is_published_has_the_texts_of_the_licences() {
    let manifests = tree::files().into_iter().filter(|path| path.ends_with("/Cargo.toml"));
    let published: Vec<_> = manifests
        .filter(|path| path.starts_with("crates/") || path.starts_with("integrations/"))
        .filter(|path| !tree::read(path).is_some_and(|text| text.contains("publish = false")))
        .filter_map(|path| path.strip_suffix("/Cargo.toml").map(str::to_owned))
        .chain(["python".to_owned()])
        .collect();
    assert!(published.len() > 8, "{published:?}");
    for name in ["LICENSE-APACHE", "LICENSE-MIT"] {
        let text = tree::read(name).expect("the text at the root");
        assert!(text.len() > 1000, "{name}");
        for package in &published {
            let copy = tree::read(&format!("{package}/{name}"));
            assert!(copy.as_deref() == Some(&text), "{package}/{name} is not the text of {name}");
        }
    }
}
