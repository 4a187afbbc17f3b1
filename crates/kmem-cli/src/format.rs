//! The formats of `kmem-snapshot` as values of `--format`.

use std::path::Path;

use clap::ValueEnum;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use kmem_snapshot::output::{Fact, Format};

use crate::destination::Destination;
use crate::failure::Failure;

/// A format, by its name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Named(pub(crate) Format);

impl ValueEnum for Named {
    fn value_variants<'a>() -> &'a [Self] {
        const COUNT: usize = Format::ALL.len();
        const ALL: [Named; COUNT] = {
            let mut all = [Named(Format::V2); COUNT];
            let mut at = 0;
            while at < COUNT {
                all[at] = Named(Format::ALL[at]);
                at += 1;
            }
            all
        };
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.0.name()).help(self.0.meaning()))
    }
}

/// Takes the name of a format that has room for changes.
pub(crate) fn of_changes() -> impl TypedValueParser<Value = Named> {
    let named = Format::OF_CHANGES.map(Named);
    let values = named.iter().filter_map(Named::to_possible_value);
    PossibleValuesParser::new(values).try_map(|name| Named::from_str(&name, false))
}

/// Opens the destination of a format. A terminal is refused for one that is no text.
pub(crate) fn open(
    format: Format,
    path: Option<&Path>,
    otherwise: Destination,
) -> Result<Destination, Failure> {
    let destination = Destination::open(path, otherwise)?;
    if format.is_binary() && destination.is_terminal() {
        let name = format.name();
        return Err(Failure::Trouble(format!(
            "--format {name} is not text and cannot go to a terminal: send it to a file"
        )));
    }
    Ok(destination)
}

/// Refuses a format that has no room for a fact that an option asks for.
pub(crate) fn check(format: Format, fact: Fact, option: &str) -> Result<(), Failure> {
    if format.has(fact) {
        return Ok(());
    }
    let others = Format::ALL.iter().filter(|other| other.has(fact)).map(|other| other.name());
    let others = others.collect::<Vec<_>>().join(", ");
    let name = format.name();
    Err(Failure::Trouble(format!(
        "{option} cannot be combined with --format {name}, which has no room for it; these have: \
         {others}"
    )))
}
