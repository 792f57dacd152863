//! Everything of limiterd that runs in user space.

pub mod object;
pub mod rate;
