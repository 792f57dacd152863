//! The one entry: decides, counts, carries out.

use aya_ebpf::{
    bindings::xdp_action::{XDP_DROP, XDP_PASS},
    macros::xdp,
    programs::XdpContext,
};
use aya_log_ebpf::error;
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
    // Other trouble is told by those who read the counters.
    if decision.reason == Reason::Internal && maps::may_report() {
        error!(&ctx, "no rule set is loaded; the packet passed");
    }
    match decision.verdict {
        Verdict::Pass | Verdict::WouldDrop => XDP_PASS,
        Verdict::Drop => XDP_DROP,
    }
}
