//! What every object brings along for the kernel.

/// Some helpers are for programs under a GPL-compatible licence only.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

/// A panic that survives optimisation ends in this loop, which the verifier
/// refuses; so no panic can reach a kernel.
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
