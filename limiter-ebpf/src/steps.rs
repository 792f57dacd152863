//! Steps of the core as functions of their own.
//!
//! They are global functions to the verifier: each is verified once, for any
//! arguments, and pointers come with the size of what they point to and may be
//! null.

use aya_ebpf::{bindings::xdp_md, programs::XdpContext};
use limiter_common::{
    bucket::Charge,
    charge, class,
    gate::Gate,
    limit::Limit,
    lists::{self, Contents},
    parse::Shape,
    source::{Key4, Key6, Total},
    tables::{Steps, TotalStep},
};

use crate::{frame::XdpFrame, maps::KernelTables};

/// [`lists::look_up`]; the code of a reason, or [`UNLISTED`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn look_up(address: *const [u32; 4], contents: u64, slot: u32) -> u32 {
    // SAFETY: null, or an address that outlives the call.
    let Some(address) = (unsafe { address.as_ref() }) else {
        return UNLISTED;
    };
    match lists::look_up(address, Contents(contents), slot, &KernelTables) {
        Some(reason) => reason as u32,
        None => UNLISTED,
    }
}

/// The code of no reason.
const UNLISTED: u32 = u32::MAX;

/// [`class::classes_of`]
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn classes_of(
    ctx: *mut xdp_md,
    shape: u64,
    source: *const [u32; 4],
    slot: u32,
) -> u64 {
    // SAFETY: null, or an address that outlives the call.
    let Some(source) = (unsafe { source.as_ref() }) else {
        return 0;
    };
    let ctx = XdpContext::new(ctx);
    let frame = XdpFrame::new(&ctx);
    class::classes_of(&frame, Shape::from_word(shape), source, slot, &KernelTables)
}

/// A copy of a key on this function's own stack: before Linux 6.2 no map is
/// looked up by what another function passes (`map_key_value_types` of
/// kernel/bpf/verifier.c).
///
/// # Safety
/// Null, or a key that outlives the call.
#[inline(always)]
unsafe fn own<K: Copy>(key: *const K) -> Option<K> {
    if key.is_null() {
        return None;
    }
    // SAFETY: as the caller promises. Volatile, so that it is a copy.
    Some(unsafe { key.read_volatile() })
}

macro_rules! steps {
    ($key:ty, $charge_key:ident, $charge_untracked:ident) => {
        /// [`charge::charge_key`]; the code of a [`Charge`].
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub(crate) extern "C" fn $charge_key(
            key: *const $key,
            limit: *const Limit,
            gate: *const Gate,
            cost: u32,
        ) -> u32 {
            // SAFETY: null, or a key that outlives the call.
            let key = unsafe { own(key) };
            // SAFETY: null, or part of a map value.
            let limit = unsafe { limit.as_ref() };
            // SAFETY: null, or part of a map value.
            let gate = unsafe { gate.as_ref() };
            let (Some(key), Some(limit), Some(gate)) = (key, limit, gate) else {
                return Charge::NoRoom as u32;
            };
            charge::charge_key(&key, limit, gate, cost, &KernelTables) as u32
        }

        /// [`charge::charge_untracked`]; the code of a [`Charge`].
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub(crate) extern "C" fn $charge_untracked(cell: *const $key, gate: *const Gate) -> u32 {
            // SAFETY: null, or a key that outlives the call.
            let cell = unsafe { cell.as_ref() };
            // SAFETY: null, or part of a map value.
            let gate = unsafe { gate.as_ref() };
            let (Some(cell), Some(gate)) = (cell, gate) else {
                return Charge::NoRoom as u32;
            };
            charge::charge_untracked(cell, gate, &KernelTables) as u32
        }

        impl Steps<$key> for KernelTables {
            #[inline(always)]
            fn charge_key(&self, key: &$key, limit: &Limit, gate: &Gate, cost: u32) -> Charge {
                Charge::from_code($charge_key(key, limit, gate, cost))
            }

            #[inline(always)]
            fn charge_untracked(&self, cell: &$key, gate: &Gate) -> Charge {
                Charge::from_code($charge_untracked(cell, gate))
            }
        }
    };
}

steps!(Key4, charge_key4, charge_untracked4);
steps!(Key6, charge_key6, charge_untracked6);

/// [`charge::charge_total`]; the code of a [`Charge`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn charge_total(key: u32, limit: *const Limit, cost: u32) -> u32 {
    // SAFETY: null, or part of a map value.
    let limit = unsafe { limit.as_ref() };
    let Some(limit) = limit else {
        return Charge::NoRoom as u32;
    };
    charge::charge_total(Total(key), limit, cost, &KernelTables) as u32
}

impl TotalStep for KernelTables {
    #[inline(always)]
    fn charge_total(&self, key: Total, limit: &Limit, cost: u32) -> Charge {
        Charge::from_code(charge_total(key.0, limit, cost))
    }
}
