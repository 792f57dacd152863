//! The pure core of limiterd.
//!
//! One packet goes through `frame` → [`parse`] → [`lists`] (allow, ban, deny) →
//! [`class`] (which [`policy`]) → [`charge`] (each [`level`], behind the [`gate`]
//! for new sources) → [`verdict`]; [`decide`] is that line, written once.
//! Bytes, tables and time come in as parameters, so that the XDP program, the
//! tests and any simulation run this same code. Nothing here allocates, reads
//! a clock or panics on input.
#![cfg_attr(not(test), no_std)]

pub mod bucket;
pub mod charge;
pub mod class;
pub mod control;
pub mod decide;
pub mod frame;
pub mod gate;
pub mod level;
pub mod limit;
pub mod lists;
pub mod parse;
pub mod policy;
pub mod sample;
pub mod source;
pub mod stats;
pub mod tables;
pub mod tracked;
pub mod verdict;

/// Version of everything that outlives a process: map layouts, map names and
/// what their contents mean. It is part of the pin directory's name; raise it
/// whenever one of them changes.
pub const ABI_VERSION: u32 = 5;
