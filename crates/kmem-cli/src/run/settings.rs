//! The options of the allocator, as options of `kmem run`. All of them come from the allocator's
//! own table, and its own code parses their values.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;

use clap::builder::TypedValueParser;
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches};
use kmem_core::conf::{Conf, ConfOption, MAX_TEXT, Message, OPTIONS, Taken};

use kmem_snapshot::escape::printable;

use crate::failure::Failure;

/// Options that `kmem run` sets itself, for its report.
const OWN: [&str; 2] = ["boxes", "report"];
const HEADING: &str = "Options of the allocator";

/// Options that the user gives.
fn options() -> impl Iterator<Item = &'static ConfOption> {
    OPTIONS.iter().filter(|option| !OWN.contains(&option.name))
}

/// The options that were given, as `name:value` each.
#[derive(Default)]
pub(crate) struct Settings(Vec<Vec<u8>>);

impl Settings {
    /// Value of KMEM_CONF for the command: the variable of this process, then these options, then
    /// those that the report needs. The last value of an option counts.
    ///
    /// # Errors
    ///
    /// [`Failure`] for each part of the variable that the allocator would leave out.
    pub(crate) fn text(&self, socket: &str, boxes: Option<&Path>) -> Result<OsString, Failure> {
        let inherited = env::var_os("KMEM_CONF").unwrap_or_default().into_vec();
        check(&inherited)?;
        let boxes = boxes.map(|path| [b"boxes:", path.as_os_str().as_bytes()].concat());
        let report = format!("report:{socket}").into_bytes();
        let first = [inherited, b"peak:1".to_vec()].into_iter().filter(|part| !part.is_empty());
        let parts = first.chain(self.0.iter().cloned()).chain(boxes).chain([report]);
        let text = parts.collect::<Vec<_>>().join(&b',');
        if text.len() > MAX_TEXT {
            return Err(Failure::Trouble(format!(
                "KMEM_CONF: longer than {MAX_TEXT} bytes with the options of this command"
            )));
        }
        Ok(OsString::from_vec(text))
    }
}

/// Refuses a text that the allocator would not take as a whole.
fn check(text: &[u8]) -> Result<(), Failure> {
    if text.len() > MAX_TEXT {
        return Err(Failure::Trouble(format!("KMEM_CONF: longer than {MAX_TEXT} bytes")));
    }
    let mut faults = Vec::new();
    Conf::DEFAULT.clone().apply(text, |part, why| {
        let message = Message { part, why, show: |bytes| String::from_utf8_lossy(bytes) };
        faults.push(Failure::Trouble(format!("KMEM_CONF: {message}")));
    });
    if faults.is_empty() { Ok(()) } else { Err(Failure::Several(faults)) }
}

/// The configuration that a text gives the command.
pub(crate) fn conf(text: &OsStr) -> Conf {
    let mut conf = Conf::DEFAULT;
    conf.apply(text.as_bytes(), |_, _| {});
    conf
}

/// The flag of an option. It has the option's name, which may also be written with dashes.
fn argument(option: &'static ConfOption) -> Arg {
    let (name, values) = (option.name, option.values);
    let default = if option.default.is_empty() { "none" } else { option.default };
    let help = format!("{} Values: {values}. Default: {default}", option.meaning);
    let arg = Arg::new(name).long(name).help(help).help_heading(HEADING);
    let arg = arg.alias(name.replace('_', "-")).overrides_with(name);
    let arg =
        arg.action(ArgAction::Set).value_name(placeholder(values)).value_parser(Value(option));
    if option.takes(b"") {
        // The word behind it may be the command.
        return arg.num_args(0..=1).require_equals(true).default_missing_value("");
    }
    arg
}

/// Stands for the value in the help: the words that it may be, or the kind of value.
fn placeholder(values: &str) -> String {
    let mut words: Vec<&str> = values.split('`').skip(1).step_by(2).collect();
    let mut seen = Vec::new();
    words.retain(|word| {
        !seen.contains(word) && {
            seen.push(*word);
            true
        }
    });
    match values.strip_prefix("a ").and_then(|kind| kind.split(' ').next()) {
        _ if !words.is_empty() => words.join("|"),
        Some(kind) => kind.to_uppercase(),
        None => "N".to_owned(),
    }
}

/// Parses the value of an option as the allocator does.
#[derive(Clone)]
struct Value(&'static ConfOption);

impl TypedValueParser for Value {
    type Value = OsString;

    fn parse_ref(
        &self,
        command: &Command,
        _: Option<&Arg>,
        value: &OsStr,
    ) -> Result<OsString, clap::Error> {
        let Self(option) = self;
        if option.takes(value.as_bytes()) {
            return Ok(value.to_owned());
        }
        let (name, shown) = (option.name, value.to_string_lossy());
        let why = if shown.contains(',') { "; no value can hold a comma" } else { "" };
        let text = format!(
            "invalid value '{}' for '--{name}': {}{why}\n",
            printable(&shown),
            Taken(option)
        );
        Err(clap::Error::raw(ErrorKind::ValueValidation, text).with_cmd(command))
    }
}

impl clap::Args for Settings {
    fn augment_args(command: Command) -> Command {
        command.args(options().map(argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Settings {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut settings = Self::default();
        settings.update_from_arg_matches(matches)?;
        Ok(settings)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for ConfOption { name, .. } in options() {
            if let Some(value) = matches.get_one::<OsString>(name) {
                self.0.push([name.as_bytes(), b":", value.as_bytes()].concat());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Args as _;

    fn parse(args: &[&str]) -> Result<Vec<String>, String> {
        let command = Settings::augment_args(Command::new("run"));
        let matches = command.try_get_matches_from([&["run"], args].concat());
        let settings = matches.and_then(|matches| Settings::from_arg_matches(&matches));
        let text = |part: Vec<u8>| String::from_utf8(part).unwrap();
        settings.map(|Settings(of)| of.into_iter().map(text).collect()).map_err(|e| e.to_string())
    }

    #[test]
    fn every_option_of_the_allocator_is_a_flag_that_takes_its_default() {
        for option in OPTIONS.iter().filter(|option| !OWN.contains(&option.name)) {
            let (name, value) = (option.name, option.default.trim_matches('`'));
            let value = if value.is_empty() { "some/path" } else { value };
            for spelling in [name.to_owned(), name.replace('_', "-")] {
                let args = [format!("--{spelling}={value}")];
                assert_eq!(parse(&[&args[0]]), Ok(vec![format!("{name}:{value}")]));
            }
        }
    }

    #[test]
    fn a_flag_refuses_what_the_allocator_would_leave_out() {
        let refusal = |args: &[&str]| parse(args).expect_err("a refusal");
        let text = refusal(&["--depth", "99"]);
        assert!(text.contains("invalid value '99' for '--depth': depth takes 1 to 32"), "{text}");
        let text = refusal(&["--blackbox", "a,b"]);
        assert!(text.contains("no value can hold a comma"), "{text}");
        for args in [["--redzone", "yes"], ["--blackbox", " a"], ["--decay_ms", ""]] {
            assert!(refusal(&args).contains("takes"), "{args:?}");
        }
    }

    #[test]
    fn the_last_value_of_a_flag_counts() {
        assert_eq!(parse(&["--depth", "4", "--depth=8"]), Ok(vec!["depth:8".to_owned()]));
    }

    #[test]
    fn a_switch_that_may_stand_alone_is_a_plain_flag() {
        assert_eq!(parse(&["--debug"]), Ok(vec!["debug:".to_owned()]));
        assert_eq!(parse(&["--debug=0"]), Ok(vec!["debug:0".to_owned()]));
    }

    #[test]
    fn the_help_shows_the_values() {
        let shown = |name: &str| {
            let option = OPTIONS.iter().find(|option| option.name == name).expect("an option");
            placeholder(option.values)
        };
        assert_eq!(shown("debug"), "0|1");
        assert_eq!(shown("check_pages"), "off|refill|every");
        assert_eq!((shown("depth"), shown("blackbox")), ("N".to_owned(), "PATH".to_owned()));
    }
}
