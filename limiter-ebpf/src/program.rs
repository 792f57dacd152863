//! The one entry: decides, counts, carries out.

use aya_ebpf::{
    bindings::xdp_action::{XDP_DROP, XDP_PASS},
    macros::xdp,
    programs::XdpContext,
};
use aya_log_ebpf::{error, warn};
use limiter_common::{
    decide::decide,
    verdict::{Reason, Verdict},
};

use crate::{
    frame::XdpFrame,
    maps::{self, KernelTables},
};

/// The one entry, for every interface.
#[expect(clippy::needless_pass_by_value, reason = "the macro's signature")]
#[xdp(frags)]
fn limiterd(ctx: XdpContext) -> u32 {
    let decision = decide(&XdpFrame::new(&ctx), &KernelTables);
    maps::count(&ctx, &decision);
    if decision.reason.is_trouble() && maps::may_report() {
        report(&ctx, decision.reason);
    }
    match decision.verdict {
        Verdict::Pass | Verdict::WouldDrop => XDP_PASS,
        Verdict::Drop => XDP_DROP,
    }
}

/// Tells user space of trouble of our own; never of packets.
#[inline(always)]
fn report(ctx: &XdpContext, reason: Reason) {
    match reason {
        Reason::MapFull => {
            warn!(ctx, "a table took no new source; it shares the cap of untracked ones");
        }
        Reason::Contended => warn!(ctx, "CPUs contend for one source; the packet was dropped"),
        _ => error!(ctx, "no rule set is loaded; the packet passed"),
    }
}
