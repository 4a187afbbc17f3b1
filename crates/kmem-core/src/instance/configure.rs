//! Reading the configuration when an instance starts.
//!
//! | source                      | who writes it                       | wins over   |
//! |-----------------------------|-------------------------------------|-------------|
//! | [`ConfSource::Program`]     | the author of the program           | defaults    |
//! | [`ConfSource::File`]        | the administrator of the machine    | the program |
//! | [`ConfSource::Environment`] | the user who starts the program     | the file    |
//!
//! A later source wins option by option. In a sandbox the file is not read, so the environment is
//! read before the file is. Its options are then set once more.

use crate::conf::{self, Complaint, Conf, MAX_TEXT, Message};
use crate::os::{ConfSource, Platform};
use crate::report::{Printable, print};

/// Reads the configuration. Unknown and malformed options are reported with their source, and left
/// out. If the configuration as a whole is strict, they end the program.
pub(super) fn configure(platform: &impl Platform) -> Conf {
    let mut conf = Conf::DEFAULT;
    let mut reader = Reader { platform, bad: false };
    let mut room = [0; MAX_TEXT];
    let mut variable = [0; MAX_TEXT];
    let text = reader.read(ConfSource::Program, &mut room);
    reader.apply(&mut conf, ConfSource::Program, text);
    let variable = reader.read(ConfSource::Environment, &mut variable);
    reader.apply(&mut conf, ConfSource::Environment, variable);
    if !conf.sandbox {
        let text = reader.read(ConfSource::File, &mut room);
        if !text.is_empty() {
            conf::lines(text).for_each(|line| reader.apply(&mut conf, ConfSource::File, line));
            // The faults of this text are reported already.
            conf.apply(variable, |_, _| ());
        }
    }
    if reader.bad && conf.strict {
        platform.fatal();
    }
    conf
}

/// Reads texts, and reports what is wrong with them.
struct Reader<'a, P> {
    platform: &'a P,
    /// True once something was wrong with a text.
    bad: bool,
}

impl<P: Platform> Reader<'_, P> {
    /// The text of a source, in `room`; empty if there is none, or if it is too long.
    fn read<'a>(&mut self, source: ConfSource, room: &'a mut [u8; MAX_TEXT]) -> &'a [u8] {
        let len = self.platform.configuration(source, room).unwrap_or(0);
        if len > room.len() {
            self.bad = true;
            let name = source.name();
            print!(self.platform, "kmem: {name}: longer than {MAX_TEXT} bytes; ignored\n");
            return &[];
        }
        &room[..len]
    }

    /// Applies a text of a source.
    fn apply(&mut self, conf: &mut Conf, source: ConfSource, text: &[u8]) {
        conf.apply(text, |part: &[u8], why: Complaint| {
            self.bad = true;
            let message = Message { part, why, show: Printable };
            print!(self.platform, "kmem: {}: {message}\n", source.name());
        });
    }
}
