//! swimlet.
fn main() {}
