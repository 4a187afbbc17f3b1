//! Limits of groups, written from outside.
//!
//! A limit is one aligned word in the group's entry. The process reads it when it next charges the
//! group. When the group is above its new limit, shrinkers run on the thread that allocates.
//!
//! The group may be deleted meanwhile, and its entry reused for another group. So the writer reads
//! the generation before and after. If it changed and the entry holds the written value, the writer
//! puts back the value of a new group.

use std::cell::RefCell;
use std::mem::offset_of;

use kmem_layout::group::{GroupBlock, Limit, NO_LIMIT, group_state};

use super::Control;
use crate::books::{Group, Groups, Profiling, Root, Source};
use crate::budget::Budget;
use crate::error::ReadError;
use crate::memory::Memory;

/// Offset of a limit in an entry.
fn offset(limit: Limit) -> usize {
    match limit {
        Limit::Max => offset_of!(GroupBlock, max),
        Limit::High => offset_of!(GroupBlock, high),
        Limit::Low => offset_of!(GroupBlock, low),
    }
}

impl Control {
    /// Sets a limit of the group at a path such as `/tenants/a`, in every root block that has the
    /// group. `bytes` may be [`NO_LIMIT`].
    ///
    /// # Errors
    ///
    /// - [`ReadError::NoGroup`] when there is no such group, or it is deleted meanwhile.
    /// - [`ReadError::RootGroup`] for the root, which has no limits.
    /// - [`ReadError::BadBooks`] when the entry is not in the process's writable memory.
    /// - [`ReadError::NoProcess`], [`ReadError::Recycled`], [`ReadError::Permission`],
    ///   [`ReadError::Memory`]: the process has ended or may not be written.
    pub fn set_group_limit(&self, path: &str, limit: Limit, bytes: u64) -> Result<(), ReadError> {
        let no_group = || ReadError::NoGroup { pid: self.process.pid(), group: path.to_owned() };
        let mut entries = Vec::new();
        for (root, groups) in self.groups()? {
            let Some(at) = groups.find(path) else { continue };
            let group = &groups.all()[at];
            if group.is_root() {
                return Err(ReadError::RootGroup);
            }
            entries.push((self.entry(root, group)?, group.generation));
        }
        if entries.is_empty() {
            return Err(no_group());
        }
        self.process.verify()?;
        for (entry, generation) in entries {
            if !self.write_limit(entry, generation, limit, bytes)? {
                return Err(no_group());
            }
        }
        self.process.verify()
    }

    /// The groups of each root block that has any.
    pub(super) fn groups(&self) -> Result<Vec<(&Root, Groups)>, ReadError> {
        let memory = Memory::Live(self.memory.clone());
        let (budget, zones) = (Budget::default(), RefCell::default());
        let source =
            Source { memory: &memory, maps: &self.maps, pages: None, budget: &budget, zones };
        let kept = self.roots.iter().filter(|root| root.profiling != Profiling::Never);
        kept.map(|root| Ok((root, Groups::read(&source, root)?))).collect()
    }

    /// Address of a group's entry, which lies in the process's writable memory.
    fn entry(&self, root: &Root, group: &Group) -> Result<u64, ReadError> {
        let size = u64::from(root.group_size);
        let entry =
            u64::from(group.objcg).checked_mul(size).and_then(|at| at.checked_add(root.groups));
        let fits =
            |&entry: &u64| entry.is_multiple_of(8) && self.maps.is_writable_memory(entry, size);
        entry.filter(fits).ok_or_else(|| {
            let what = format!(
                "groups at {:#x}: entry {} is not in the process's writable memory",
                root.groups, group.objcg
            );
            ReadError::BadBooks { root: root.at, what }
        })
    }

    /// Writes one limit of an entry. Returns false when the group is no longer there.
    fn write_limit(
        &self,
        entry: u64,
        generation: u32,
        limit: Limit,
        bytes: u64,
    ) -> Result<bool, ReadError> {
        let is_there = || -> Result<bool, ReadError> {
            let mut state = [0; 4];
            self.memory.read(entry + offset_of!(GroupBlock, state) as u64, &mut state)?;
            let expected = generation << group_state::BITS | group_state::LIVE;
            Ok(u32::from_le_bytes(state) == expected)
        };
        if !is_there()? {
            return Ok(false);
        }
        let word = entry + offset(limit) as u64;
        self.memory.write(word, &bytes.to_le_bytes())?;
        if is_there()? {
            return Ok(true);
        }
        let mut now = [0; 8];
        self.memory.read(word, &mut now)?;
        if now == bytes.to_le_bytes() {
            let none = if limit == Limit::Low { 0 } else { NO_LIMIT };
            self.memory.write(word, &none.to_le_bytes())?;
        }
        Ok(false)
    }
}
