//! Sources of an instance's configuration.

/// A place where the configuration of an instance may be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConfSource {
    /// The program itself. On Linux: the symbol `const char *kmem_conf`.
    Program,
    /// A file of the machine, with one or more lines. On Linux: `/etc/kmem.conf`.
    File,
    /// The user who starts the program. On Linux: the environment variable `KMEM_CONF`.
    Environment,
}

impl ConfSource {
    /// Name of the source in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Program => "kmem_conf",
            Self::File => "/etc/kmem.conf",
            Self::Environment => "KMEM_CONF",
        }
    }
}
