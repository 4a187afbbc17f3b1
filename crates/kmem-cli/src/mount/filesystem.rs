//! Requests of the kernel, and open files.
//!
//! A file is read when it is opened, so that one reader sees one moment. As in `/proc`, its size is
//! not known before, and is said to be 0.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner,
    OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite,
    Request, TimeOrNow, WriteFlags,
};
use kmem_snapshot::ReadError;
use rustix::process::{getegid, geteuid};

use super::books::{Books, below};
use super::node::{Node, Nodes};
use crate::failure::say;
use crate::group::file::{FILES, File};
use crate::group::set::size_or_max;

/// Time for which the kernel may keep names and attributes: processes and groups come and go.
const KEEP: Duration = Duration::ZERO;

/// The file system.
pub(super) struct Files {
    state: Mutex<State>,
    user: (u32, u32),
}

#[derive(Default)]
struct State {
    nodes: Nodes,
    books: Books,
    /// Contents of open files and directories, by handle.
    open: HashMap<u64, Open>,
    handles: u64,
}

/// An open file or directory.
enum Open {
    Contents(Vec<u8>),
    Names(Vec<(String, Node)>),
}

impl State {
    fn keep(&mut self, open: Open) -> FileHandle {
        self.handles += 1;
        self.open.insert(self.handles, open);
        FileHandle(self.handles)
    }

    fn node(&self, number: INodeNo) -> Result<Node, Errno> {
        self.nodes.get(number.0).ok_or(Errno::ENOENT)
    }

    /// The node of a name in a directory.
    fn find(&mut self, parent: INodeNo, name: &OsStr) -> Result<Node, Errno> {
        let (parent, name) = (self.node(parent)?, name.to_str().ok_or(Errno::ENOENT)?);
        self.books.find(&parent, name).map_err(code)?.ok_or(Errno::ENOENT)
    }

    /// Opens a file. One that is only written is not read.
    fn open(&mut self, number: INodeNo, is_read: bool) -> Result<FileHandle, Errno> {
        let node = self.node(number)?;
        let contents = if is_read { self.books.contents(&node).map_err(code)? } else { None };
        Ok(self.keep(Open::Contents(contents.unwrap_or_default())))
    }

    fn write(&mut self, number: INodeNo, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let Node::GroupFile(pid, path, at) = self.node(number)? else { return Err(Errno::EACCES) };
        let limit = FILES.get(at).and_then(File::limit).ok_or(Errno::EACCES)?;
        let text = std::str::from_utf8(data).ok().filter(|_| offset == 0).ok_or(Errno::EINVAL)?;
        let bytes = size_or_max(text.trim()).map_err(|why| {
            say(&why);
            Errno::EINVAL
        })?;
        Books::set(pid, &path, limit, bytes).map_err(code)
    }

    /// The path of a group right below a directory of groups.
    fn group_in(&self, parent: INodeNo, name: &OsStr) -> Result<(u32, String), Errno> {
        let Node::Group(pid, path) = self.node(parent)? else { return Err(Errno::EPERM) };
        let name = name.to_str().ok_or(Errno::EINVAL)?;
        Ok((pid, below(&path, name)))
    }

    fn create(&mut self, parent: INodeNo, name: &OsStr) -> Result<Node, Errno> {
        let (pid, path) = self.group_in(parent, name)?;
        if self.find(parent, name).is_ok() {
            return Err(Errno::EEXIST);
        }
        self.books.create(pid, &path).map_err(code)?;
        Ok(Node::Group(pid, path))
    }

    fn delete(&mut self, parent: INodeNo, name: &OsStr) -> Result<(), Errno> {
        let (pid, path) = self.group_in(parent, name)?;
        if !self.find(parent, name)?.is_directory() {
            return Err(Errno::ENOTDIR);
        }
        self.books.delete(pid, &path).map_err(code)
    }
}

impl Files {
    pub(super) fn new() -> Self {
        let user = (geteuid().as_raw(), getegid().as_raw());
        Self { state: Mutex::default(), user }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn attributes(&self, node: &Node, number: u64) -> FileAttr {
        let (kind, perm) = match node {
            Node::Root | Node::Process(_) | Node::Group(..) => (FileType::Directory, 0o755),
            _ if is_limit(node) => (FileType::RegularFile, 0o644),
            _ => (FileType::RegularFile, 0o444),
        };
        let (now, (uid, gid)) = (SystemTime::now(), self.user);
        FileAttr {
            ino: INodeNo(number),
            size: 0,
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
            crtime: now,
            kind,
            perm,
            nlink: 1,
            uid,
            gid,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }

    /// Replies with a node that was looked up.
    fn enter(&self, state: &mut State, node: Node, reply: ReplyEntry) {
        let number = state.nodes.look_up(node.clone());
        reply.entry(&KEEP, &self.attributes(&node, number), Generation(0));
    }
}

/// True for a file that can be written.
fn is_limit(node: &Node) -> bool {
    let Node::GroupFile(_, _, at) = node else { return false };
    FILES.get(*at).is_some_and(|file| file.limit().is_some())
}

/// The number of an error. The user of a file sees no more, so the message goes to standard error.
fn code(error: ReadError) -> Errno {
    if !error.is_absent() {
        say(&error.to_string());
    }
    match () {
        () if error.is_absent() => Errno::ENOENT,
        () if error.is_permission() => Errno::EACCES,
        () => Errno::EIO,
    }
}

impl Filesystem for Files {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let mut state = self.state();
        match state.find(parent, name) {
            Ok(node) => self.enter(&mut state, node, reply),
            Err(errno) => reply.error(errno),
        }
    }

    fn forget(&self, _: &Request, number: INodeNo, lookups: u64) {
        self.state().nodes.forget(number.0, lookups);
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.state().node(number) {
            Ok(node) => reply.attr(&KEEP, &self.attributes(&node, number.0)),
            Err(errno) => reply.error(errno),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        number: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        _size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        match self.state().node(number) {
            // A shell cuts a file off before it writes.
            Ok(node) if is_limit(&node) && (mode, uid, gid) == (None, None, None) => {
                reply.attr(&KEEP, &self.attributes(&node, number.0));
            }
            Ok(_) => reply.error(Errno::EPERM),
            Err(errno) => reply.error(errno),
        }
    }

    fn open(&self, _: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let is_read = flags.0 & libc::O_ACCMODE != libc::O_WRONLY;
        match self.state().open(number, is_read) {
            // Without this flag, nothing is read from a file of size 0.
            Ok(handle) => reply.opened(handle, FopenFlags::FOPEN_DIRECT_IO),
            Err(errno) => reply.error(errno),
        }
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let state = self.state();
        let Some(Open::Contents(contents)) = state.open.get(&handle.0) else {
            return reply.error(Errno::EBADF);
        };
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(contents.len());
        let end = start.saturating_add(size as usize).min(contents.len());
        reply.data(contents.get(start..end).unwrap_or_default());
    }

    fn write(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.state().write(number, offset, data) {
            // The kernel gives no more than some megabytes at a time.
            Ok(()) => reply.written(data.len() as u32),
            Err(errno) => reply.error(errno),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.state().open.remove(&handle.0);
        reply.ok();
    }

    fn opendir(&self, _: &Request, number: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let mut state = self.state();
        let names = state.node(number).and_then(|node| state.books.list(&node).map_err(code));
        match names {
            Ok(names) => reply.opened(state.keep(Open::Names(names)), FopenFlags::empty()),
            Err(errno) => reply.error(errno),
        }
    }

    fn readdir(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let state = self.state();
        let Some(Open::Names(names)) = state.open.get(&handle.0) else {
            return reply.error(Errno::EBADF);
        };
        let own = [".", ".."].map(|name| (name, number, FileType::Directory));
        let others = names.iter().map(|(name, node)| {
            let is_directory = node.is_directory();
            let kind = if is_directory { FileType::Directory } else { FileType::RegularFile };
            (name.as_str(), INodeNo(state.nodes.number(node)), kind)
        });
        let skipped = usize::try_from(offset).unwrap_or(usize::MAX);
        for (at, (name, number, kind)) in (1..).zip(own.into_iter().chain(others)).skip(skipped) {
            if reply.add(number, at, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.state().open.remove(&handle.0);
        reply.ok();
    }

    fn mkdir(&self, _: &Request, parent: INodeNo, name: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        let mut state = self.state();
        match state.create(parent, name) {
            Ok(node) => self.enter(&mut state, node, reply),
            Err(errno) => reply.error(errno),
        }
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        match self.state().delete(parent, name) {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }
}
