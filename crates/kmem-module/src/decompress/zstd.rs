//! The decoder of Zstandard: one frame (RFC 8878).

use zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer, get_error_name};

use super::{Decoded, Failure, Input, MAX_DICTIONARY};

/// A decoder over an input.
pub(super) struct Zstd<'a> {
    pub(super) input: Input<'a>,
    context: DCtx<'static>,
    finished: bool,
}

fn failed(code: usize) -> Failure {
    match get_error_name(code) {
        // The library guarantees no error numbers.
        name if name.contains("not enough memory") => Failure::NoMemory,
        name => Failure::Damaged(name),
    }
}

impl<'a> Zstd<'a> {
    pub(super) fn new(input: Input<'a>) -> Decoded<Self> {
        let mut context = DCtx::try_create().ok_or(Failure::NoMemory)?;
        context.init().map_err(failed)?;
        let log = DParameter::WindowLogMax(MAX_DICTIONARY.ilog2());
        context.set_parameter(log).map_err(failed)?;
        Ok(Self { input, context, finished: false })
    }

    pub(super) fn read(&mut self, into: &mut [u8]) -> Decoded<usize> {
        while !self.finished && !into.is_empty() {
            let ready = self.input.fill()?;
            let at_end = ready.is_empty();
            let mut from = InBuffer::around(ready);
            let mut to = OutBuffer::around(into);
            let left = self.context.decompress_stream(&mut to, &mut from).map_err(failed)?;
            let (used, made) = (from.pos(), to.pos());
            self.input.consume(used);
            self.finished = left == 0;
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
