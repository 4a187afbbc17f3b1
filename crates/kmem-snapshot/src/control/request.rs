//! Groups that are made and deleted from outside.
//!
//! The writer does not touch the table of groups: the process changes it under a lock of its own.
//! It writes a request into the root block and empties the cache of call sites. Then the next
//! allocation of the process, from whatever call site, serves the request. A process that allocates
//! nothing does not serve it, and the writer takes the request back.

use std::fs::File;
use std::mem::offset_of;
use std::time::{Duration, Instant};

use kmem_layout::group::{
    GroupRequest, Limit, MAX_GROUP_NAME, NO_LIMIT, ROOT_GENERATION, group_action, group_answer,
};
use kmem_layout::root::RootBlock;
use kmem_layout::word::OBJCG_BITS;
use rustix::fs::{FlockOperation, flock};

use super::{AGAIN, Control};
use crate::books::{Group, Root};
use crate::error::ReadError;

/// Longest pause between two looks at the answer.
const LOOK: Duration = Duration::from_millis(10);

/// A request, as it is written.
struct Request<'a> {
    action: u32,
    /// The group to delete, or the parent of the new one.
    group: u64,
    name: &'a str,
    limits: &'a [(Limit, u64)],
}

impl Control {
    /// Makes the group at a path such as `/tenants/a` with limits in bytes, in every root block
    /// that has its parent. Waits up to `patience` for an allocation of the process.
    ///
    /// # Errors
    ///
    /// - [`ReadError::NoGroup`] when there is no parent, or it is deleted meanwhile.
    /// - [`ReadError::GroupRefused`] when there is such a group, or there cannot be one.
    /// - [`ReadError::NotServed`] when the process did not allocate in time; it stays as it is.
    /// - The errors of [`Control::set_group_limit`].
    pub fn create_group(
        &self,
        path: &str,
        limits: &[(Limit, u64)],
        patience: Duration,
    ) -> Result<(), ReadError> {
        let whole = path.trim_end_matches('/');
        let (parent, name) = whole.rsplit_once('/').unwrap_or(("", whole));
        if name.is_empty() || name.len() > MAX_GROUP_NAME {
            let what =
                format!("{path:?} has no name: give one of 1 to {MAX_GROUP_NAME} bytes without /");
            return Err(ReadError::BadSetting(what));
        }
        let action = group_action::CREATE;
        self.request((path, parent), patience, |group| Request { action, group, name, limits })
    }

    /// Deletes the group at a path, in every root block that has it. Its parent pays from then on.
    /// Waits up to `patience` for an allocation of the process.
    ///
    /// # Errors
    ///
    /// - [`ReadError::GroupRefused`] when there are groups below it.
    /// - [`ReadError::RootGroup`] for the root.
    /// - The errors of [`Control::create_group`].
    pub fn delete_group(&self, path: &str, patience: Duration) -> Result<(), ReadError> {
        if path.split('/').all(str::is_empty) {
            return Err(ReadError::RootGroup);
        }
        let action = group_action::DELETE;
        let request = |group| Request { action, group, name: "", limits: &[] };
        self.request((path, path), patience, request)
    }

    /// Makes a request of the group at `at`, for an action on the group at `path`.
    fn request<'a>(
        &self,
        (path, at): (&str, &str),
        patience: Duration,
        request: impl Fn(u64) -> Request<'a>,
    ) -> Result<(), ReadError> {
        // Another writer waits here until this one is done.
        let process = File::open(format!("/proc/{}", self.process.pid()));
        let no_process = |_| ReadError::NoProcess { pid: self.process.pid() };
        let process = process.map_err(no_process)?;
        flock(&process, FlockOperation::LockExclusive).map_err(|error| no_process(error.into()))?;
        let mut found = false;
        for (root, groups) in self.groups()? {
            let Some(index) = groups.find(at) else { continue };
            self.check(root)?;
            self.process.verify()?;
            found = true;
            self.ask(root, &request(number(&groups.all()[index])), path, patience)?;
        }
        if !found {
            let group = if at.is_empty() { "/".to_owned() } else { at.to_owned() };
            return Err(ReadError::NoGroup { pid: self.process.pid(), group });
        }
        self.process.verify()
    }

    /// Writes a request, and waits for the answer.
    fn ask(
        &self,
        root: &Root,
        request: &Request<'_>,
        path: &str,
        patience: Duration,
    ) -> Result<(), ReadError> {
        let base = root.at + offset_of!(RootBlock, request) as u64;
        let at = |offset: usize| base + offset as u64;
        let read = |offset| -> Result<u32, ReadError> {
            let mut word = [0; 4];
            self.memory.read(at(offset), &mut word)?;
            Ok(u32::from_le_bytes(word))
        };
        let number = offset_of!(GroupRequest, number);
        let served = offset_of!(GroupRequest, served);
        // A writer that was killed may have left a request. Take it back first.
        self.memory.write(at(number), &0_u32.to_le_bytes())?;
        let next = read(served)?.wrapping_add(1).max(1);
        let limit = |limit, none| {
            let given = request.limits.iter().rfind(|(other, _)| *other == limit);
            given.map_or(none, |&(_, bytes)| bytes).to_le_bytes()
        };
        let max = limit(Limit::Max, NO_LIMIT);
        let high = limit(Limit::High, NO_LIMIT);
        let low = limit(Limit::Low, 0);
        // A name is at most 255 bytes long.
        let len = [u8::try_from(request.name.len()).unwrap_or(u8::MAX)];
        for (offset, bytes) in [
            (offset_of!(GroupRequest, action), &request.action.to_le_bytes()[..]),
            (offset_of!(GroupRequest, group), &request.group.to_le_bytes()),
            (offset_of!(GroupRequest, max), &max),
            (offset_of!(GroupRequest, high), &high),
            (offset_of!(GroupRequest, low), &low),
            (offset_of!(GroupRequest, name_len), &len),
            (offset_of!(GroupRequest, name), request.name.as_bytes()),
        ] {
            if !bytes.is_empty() {
                self.memory.write(at(offset), bytes)?;
            }
        }
        self.memory.write(at(number), &next.to_le_bytes())?;
        let (began, mut pause) = (Instant::now(), Duration::from_micros(100));
        while read(served)? != next {
            if began.elapsed() >= patience {
                self.memory.write(at(number), &0_u32.to_le_bytes())?;
                // A thread may be serving it just now.
                std::thread::sleep(AGAIN);
                if read(served)? != next {
                    return Err(ReadError::NotServed { pid: self.process.pid(), patience });
                }
                break;
            }
            // A call may have filled the cache before it could see the request.
            self.empty_cache(root)?;
            std::thread::sleep(pause);
            pause = (2 * pause).min(LOOK);
            self.process.verify()?;
        }
        let why = match read(offset_of!(GroupRequest, answer))? {
            group_answer::DONE => return Ok(()),
            group_answer::NOT_FOUND => {
                let group = path.to_owned();
                return Err(ReadError::NoGroup { pid: self.process.pid(), group });
            }
            group_answer::IS_ROOT => return Err(ReadError::RootGroup),
            group_answer::INVALID => "not a name for a group",
            group_answer::EXISTS => "there is a group of that name",
            group_answer::FULL => "there are as many groups as there can be",
            group_answer::TOO_DEEP => "more than 32 levels of groups",
            group_answer::HAS_CHILDREN => "there are groups below it",
            group_answer::NO_MEMORY => "the process has no memory for it",
            _ => "the process gives no reason",
        };
        Err(ReadError::GroupRefused { group: path.to_owned(), why })
    }
}

/// Number of a group, as the process knows it.
fn number(group: &Group) -> u64 {
    let generation = if group.objcg == 0 { ROOT_GENERATION } else { group.generation };
    u64::from(generation) << OBJCG_BITS | u64::from(group.objcg)
}
