//! `kmem completions` in a shell, and `kmem man`.

mod program;

use std::fs;
use std::process::Command;

use kmem_testing::is_missing;
use program::{KMEM, directory, text};

fn prints(args: &[&str]) -> String {
    let output = Command::new(KMEM).args(args).output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""), "{args:?}");
    text(&output.stdout)
}

#[test]
fn bash_completes_commands_and_options() {
    let dir = directory();
    let script = dir.path().join("kmem.bash");
    fs::write(&script, prints(&["completions", "bash"])).unwrap();
    let complete = |words: &str, current: &str| {
        let program = format!(
            "source {}; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             _kmem kmem {current} x; echo \"${{COMPREPLY[@]}}\"",
            script.display()
        );
        let output = Command::new("bash").args(["-c", &program]).output().unwrap();
        assert_eq!(text(&output.stderr), "", "{words}");
        text(&output.stdout)
    };
    assert_eq!(complete("kmem du", "du").trim(), "dump");
    assert_eq!(complete("kmem dump --cum", "--cum").trim(), "--cumulative");
}

#[test]
fn other_shells_have_scripts() {
    for (shell, mark) in [("zsh", "#compdef kmem"), ("fish", "complete -c kmem")] {
        assert!(prints(&["completions", shell]).contains(mark), "{shell}");
    }
}

#[test]
fn every_command_has_a_page_with_its_options_and_examples() {
    let dir = directory();
    let pages = dir.path().join("man1");
    assert_eq!(prints(&["man", pages.to_str().unwrap()]), "");
    let page = |name: &str| fs::read_to_string(pages.join(name)).unwrap();
    assert!(page("kmem-dump.1").contains("cumulative"));
    assert!(page("kmem-group-set.1").contains("memory.max=100M"));
    let own = page("kmem.1");
    assert!(own.starts_with(".ie") && own.contains("kmem\\-export(1)"), "{own}");
    assert!(own.contains("the source is absent"), "{own}");
    assert_eq!(prints(&["man"]), own);
    if !is_missing("groff") {
        let mut groff = Command::new("groff");
        let output = groff.args(["-man", "-Tutf8", "-ww"]).arg(pages.join("kmem.1")).output();
        let output = output.unwrap();
        assert_eq!(text(&output.stderr), "");
        assert!(text(&output.stdout).contains("4  no permission"), "{}", text(&output.stdout));
    }
}
