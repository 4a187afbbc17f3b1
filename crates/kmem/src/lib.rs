//! kmem
