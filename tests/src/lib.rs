//! What the tests of limiterd share.

pub mod cases;
pub mod daemon;
pub mod host;
pub mod machine;
pub mod net;
pub mod program;
pub mod sandbox;
pub mod send;
pub mod web;
pub mod wire;
