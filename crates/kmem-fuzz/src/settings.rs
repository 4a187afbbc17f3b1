//! Settings: the text of `KMEM_CONF`, and files of configuration.

use kmem_core::conf::{Conf, Message, lines};

use crate::Answer;

/// Applies each line of a file, and the whole of it as one text.
pub(crate) fn read(bytes: &[u8], answer: &mut Answer) {
    let mut conf = Conf::DEFAULT;
    for line in lines(bytes).chain([bytes]) {
        conf.apply(line, |part, why| {
            let show = |part| {
                let text = String::from_utf8_lossy(part);
                kmem_snapshot::escape::printable(&text).into_owned()
            };
            let message = Message { part, why, show }.to_string();
            answer.show(message.as_bytes());
            answer.fail(message);
        });
    }
}
