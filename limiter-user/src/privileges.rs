//! What this process may do: much while it starts, nothing once it runs.

use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};

/// Gives up every capability of the calling thread, and of all that it starts
/// from now on, for good. Maps, programs and links that are open stay usable:
/// the kernel asks for capabilities only to make them.
///
/// # Errors
/// The kernel refuses, which it does not for giving up.
pub fn give_up() -> std::io::Result<()> {
    set_no_new_privs(true)?;
    clear_ambient_capability_set()?;
    for capability in CapabilitySet::all().iter() {
        // Allowed to few; without it, the permitted set still goes.
        let _ = remove_capability_from_bounding_set(capability);
    }
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    Ok(())
}
