//! The metrics, in the text format of Prometheus.

use crate::server::Shared;

/// Type of that format.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What was collected last.
pub(super) struct Metrics {}

impl Metrics {
    pub(super) const fn new() -> Self {
        Self {}
    }

    /// All metrics as they are now.
    pub(super) async fn text(&self, shared: &Shared) -> String {
        let up = u8::from(shared.status().await.is_ok());
        format!(
            "# HELP limiterd_up Whether the shield answers.\n# TYPE limiterd_up gauge\nlimiterd_up {up}\n"
        )
    }
}
