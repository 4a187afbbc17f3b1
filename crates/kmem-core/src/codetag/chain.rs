//! Chains of callers, by frame pointers (System V ABI: each frame begins with the caller's frame
//! pointer, then the return address).
//!
//! A program need not keep frame pointers, so a frame may hold any value. The walk therefore reads
//! memory only through [`peek`]. Frames must lie above the stack pointer, each above the
//! one before and at most [`MAX_FRAME`] from it. Their number is bounded.
//!
//! [`peek`]: crate::os::Process::peek

use super::tag::CallSite;
use crate::os::Platform;
use kmem_layout::site::MAX_DEPTH;

/// Most bytes from one frame to the next.
const MAX_FRAME: usize = 1 << 20;
/// Bytes of stack read at once.
const WINDOW: usize = 1024;

/// Return addresses of a call and its callers, innermost first.
pub(super) struct Chain {
    frames: [usize; MAX_DEPTH as usize],
    len: usize,
}

impl Chain {
    /// Up to `depth` return addresses, that of the caller first.
    pub(super) fn walk(platform: &impl Platform, caller: CallSite, depth: u32) -> Self {
        let mut chain = Self { frames: [0; MAX_DEPTH as usize], len: 1 };
        chain.frames[0] = caller.address;
        let depth = depth.min(MAX_DEPTH) as usize;
        let mut window = [0u8; WINDOW];
        let (mut read_at, mut read) = (0, 0);
        // The callers' frames lie above this one.
        let mut low = (&raw const read) as usize;
        let mut frame = caller.frame;
        while chain.len < depth {
            if frame < low || frame - low > MAX_FRAME || !frame.is_multiple_of(8) {
                break;
            }
            if frame < read_at || frame + 16 > read_at + read {
                read_at = frame;
                read = platform.peek(frame, &mut window);
                if read < 16 {
                    break;
                }
            }
            let word = |at: usize| {
                let mut bytes = [0; size_of::<usize>()];
                bytes.copy_from_slice(&window[at..at + size_of::<usize>()]);
                usize::from_ne_bytes(bytes)
            };
            let (next, ret) = (word(frame - read_at), word(frame - read_at + 8));
            // The first page and the upper half of the address space hold no code of a program.
            if ret < 4096 || ret >> 47 != 0 {
                break;
            }
            chain.frames[chain.len] = ret;
            chain.len += 1;
            low = frame + 16;
            frame = next;
        }
        chain
    }

    pub(super) fn frames(&self) -> &[usize] {
        &self.frames[..self.len]
    }
}
