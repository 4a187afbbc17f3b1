//! Memory that comes through the library of Rust. It is all kept.

use std::collections::HashMap;

#[inline(never)]
fn lines(count: u32) -> Vec<String> {
    let mut all = Vec::with_capacity(count as usize);
    for i in 0..count {
        all.push(format!("line {i} of the text"));
    }
    all
}

#[inline(never)]
fn index(count: u32) -> HashMap<u32, Box<u32>> {
    let mut all = HashMap::new();
    for i in 0..count {
        all.insert(i, Box::new(i));
    }
    all
}

fn main() {
    std::mem::forget(lines(500));
    std::mem::forget(index(700));
}
