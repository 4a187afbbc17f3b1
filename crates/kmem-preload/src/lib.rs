//! libkmem.so
