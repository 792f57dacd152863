//! What the tests of limiterd share.

pub mod cases;
pub mod machine;
pub mod program;
pub mod sandbox;
pub mod wire;
