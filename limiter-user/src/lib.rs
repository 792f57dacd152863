//! Everything of limiterd that runs in user space.

pub mod error;
pub mod interface;
pub mod object;
pub mod plane;
pub mod policies;
pub mod rate;
pub mod sizing;
