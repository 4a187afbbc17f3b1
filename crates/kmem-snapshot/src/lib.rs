//! Reads the books from outside.
