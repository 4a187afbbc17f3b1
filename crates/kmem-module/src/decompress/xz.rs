//! The decoder of xz: one stream (the .xz file format, section 2).

use liblzma::stream::{Action, Error, Status, Stream};

use super::{Decoded, Failure, Input, MAX_DICTIONARY};

/// Most bytes of a decoder: its dictionary and a little more.
const MEMORY: u64 = MAX_DICTIONARY + (1 << 20);

/// A decoder over an input.
pub(super) struct Xz<'a> {
    pub(super) input: Input<'a>,
    stream: Stream,
    finished: bool,
}

fn failed(error: Error) -> Failure {
    match error {
        Error::Mem | Error::MemLimit => Failure::NoMemory,
        Error::Format => Failure::Damaged("no header"),
        Error::Options => Failure::Damaged("options that there is no decoder for"),
        _ => Failure::Damaged("the compressed data is damaged"),
    }
}

impl<'a> Xz<'a> {
    pub(super) fn new(input: Input<'a>) -> Decoded<Self> {
        let stream = Stream::new_stream_decoder(MEMORY, 0).map_err(failed)?;
        Ok(Self { input, stream, finished: false })
    }

    pub(super) fn read(&mut self, into: &mut [u8]) -> Decoded<usize> {
        while !self.finished && !into.is_empty() {
            let ready = self.input.fill()?;
            let at_end = ready.is_empty();
            let before = (self.stream.total_in(), self.stream.total_out());
            let action = if at_end { Action::Finish } else { Action::Run };
            let status = self.stream.process(ready, into, action).map_err(failed)?;
            let used = (self.stream.total_in() - before.0) as usize;
            let made = (self.stream.total_out() - before.1) as usize;
            self.input.consume(used);
            self.finished = status == Status::StreamEnd;
            if made > 0 {
                return Ok(made);
            }
            if at_end && !self.finished {
                return Err(Failure::CutOff);
            }
        }
        Ok(0)
    }
}
