//! Messages about parts of a text that are left out.

use core::fmt::{self, Display};

use super::{Complaint, ConfOption, nearest};

/// Most bytes of a part that a message shows.
const SHOWN: usize = 64;

/// The message about a part of a text that is left out: what is wrong with it, and what is right.
///
/// # Examples
/// ```
/// use kmem_core::conf::{Conf, Message};
///
/// Conf::DEFAULT.clone().apply(b"dept:8", |part, why| {
///     let message = Message { part, why, show: |part| String::from_utf8_lossy(part) };
///     assert_eq!(message.to_string(), r#"unknown option "dept"; did you mean "depth"?"#);
/// });
/// ```
pub struct Message<'a, S> {
    /// The part, as [`Conf::apply`](super::Conf::apply) names it.
    pub part: &'a [u8],
    /// The reason.
    pub why: Complaint,
    /// Makes bytes from outside a text that is safe to print.
    pub show: S,
}

impl<'a, S: Fn(&'a [u8]) -> D, D: Display> Display for Message<'a, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.part.split(|&byte| byte == b':').next().unwrap_or(self.part);
        let part = (self.show)(&self.part[..self.part.len().min(SHOWN)]);
        match (self.why, nearest(name.trim_ascii())) {
            (Complaint::BadValue, Some(option)) => {
                write!(f, "bad value in \"{part}\": {}", Taken(option))
            }
            (Complaint::UnknownOption, Some(ConfOption { name: near, .. })) => {
                write!(f, "unknown option \"{part}\"; did you mean \"{near}\"?")
            }
            _ => write!(f, "unknown option \"{part}\""),
        }
    }
}

/// The values that an option takes, in words: `depth takes 1 to 32`.
pub struct Taken<'a>(pub &'a ConfOption);

impl Display for Taken<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} takes ", self.0.name)?;
        // Without the marks around words, which the page of options has.
        self.0.values.split('`').try_for_each(|text| f.write_str(text))
    }
}
