//! What the tests of limiterd share.

pub mod cases;
pub mod machine;
pub mod wire;
