//! What the programs themselves say of trouble, through aya-log.

use aya::Ebpf;
use aya_log::EbpfLogger;
use tokio::{io::unix::AsyncFd, task::JoinHandle};

/// The tasks that forward reports; they end with this value.
#[derive(Debug)]
pub struct Reports(Vec<JoinHandle<()>>);

impl Reports {
    pub(super) fn forward<'a>(programs: impl Iterator<Item = &'a mut Ebpf>) -> Self {
        Self(programs.filter_map(forward).collect())
    }
}

impl Drop for Reports {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

/// Starts to forward the reports of one program. The shield works without.
fn forward(program: &mut Ebpf) -> Option<JoinHandle<()>> {
    let unheard = |problem: &dyn std::error::Error| {
        tracing::warn!("the program's own reports are not heard: {problem}");
    };
    let logger = EbpfLogger::init(program).map_err(|error| unheard(&error)).ok()?;
    // SAFETY: the logger owns its descriptor and keeps it open and the same.
    let registered = unsafe { AsyncFd::register(logger) };
    let mut logger = registered.map_err(|error| unheard(&error)).ok()?;
    Some(tokio::spawn(async move {
        while let Ok(mut ready) = logger.readable_mut().await {
            ready.get_inner_mut().flush();
            ready.clear_ready();
        }
    }))
}
