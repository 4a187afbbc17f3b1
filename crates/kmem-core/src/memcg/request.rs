//! Requests from outside the process: a group to make or to delete.
//!
//! An allocation serves them off its fast path, in any context. So it never waits: if another
//! thread holds the lock, a later allocation serves the request.

use kmem_layout::group::{GroupRequest, Limit, MAX_GROUP_NAME, group_action, group_answer};

use super::{GroupError, GroupId, Groups};
use crate::os::Memory;
use crate::sync::{Ordering, fence};

impl Groups {
    /// Serves a request, unless another thread changes the groups. Calls `made` with the number of
    /// ids before the answer. Returns a group that was deleted: the caller recalls the CPUs' stocks
    /// of it, and calls [`Self::settle`].
    pub fn serve(
        &self,
        platform: &impl Memory,
        request: &GroupRequest,
        made: impl FnOnce(u32),
    ) -> Option<GroupId> {
        let locked = self.try_lock()?;
        let number = request.number.load(Ordering::Acquire);
        let action = request.action.load(Ordering::Relaxed);
        let group = GroupId(request.group.load(Ordering::Relaxed));
        let limits =
            [(Limit::Max, &request.max), (Limit::High, &request.high), (Limit::Low, &request.low)];
        let limits = limits.map(|(limit, bytes)| (limit, bytes.load(Ordering::Relaxed)));
        let mut room = [0; MAX_GROUP_NAME];
        let name = request.name(&mut room);
        // Pairs with the writer, who takes the number back before it writes another request.
        fence(Ordering::SeqCst);
        if number == 0 || request.number.load(Ordering::Relaxed) != number {
            return None;
        }
        let (done, deleted) = match action {
            group_action::CREATE => {
                let id = self.create_locked(&locked, platform, group, name);
                if let Ok(block) = id.and_then(|id| self.get(id)) {
                    limits.iter().for_each(|&(limit, bytes)| {
                        block.limit(limit).store(bytes, Ordering::SeqCst);
                    });
                }
                (id.map(|_| ()), None)
            }
            group_action::DELETE => {
                let done = self.delete_locked(&locked, group);
                (done, done.is_ok().then_some(group))
            }
            _ => (Err(GroupError::BadName), None),
        };
        made(self.used());
        request.answer.store(answer(done), Ordering::Relaxed);
        request.served.store(number, Ordering::Release);
        let (done, failed) = (Ordering::Relaxed, Ordering::Relaxed);
        let _ = request.number.compare_exchange(number, 0, done, failed);
        deleted
    }
}

/// The answer to a request.
fn answer(done: Result<(), GroupError>) -> u32 {
    match done {
        Ok(()) => group_answer::DONE,
        Err(GroupError::BadName | GroupError::InShrinker) => group_answer::INVALID,
        Err(GroupError::Exists) => group_answer::EXISTS,
        Err(GroupError::Full) => group_answer::FULL,
        Err(GroupError::TooDeep) => group_answer::TOO_DEEP,
        Err(GroupError::NotFound | GroupError::NoBooks) => group_answer::NOT_FOUND,
        Err(GroupError::HasChildren) => group_answer::HAS_CHILDREN,
        Err(GroupError::IsRoot) => group_answer::IS_ROOT,
        Err(GroupError::NoMemory) => group_answer::NO_MEMORY,
    }
}
