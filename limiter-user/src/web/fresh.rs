//! What is collected at most once a second, whoever asks.

use std::time::Duration;

use tokio::{sync::Mutex, time::Instant};

/// For how long a collection serves whoever asks.
const FRESH: Duration = Duration::from_secs(1);

/// The last collection.
pub(super) struct Fresh<T>(Mutex<Option<(Instant, T)>>);

impl<T: Clone> Fresh<T> {
    pub(super) fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// As it was within the last second. Those who ask at the same time wait
    /// for one collection.
    pub(super) async fn get(&self, collect: impl Future<Output = T>) -> T {
        let mut last = self.0.lock().await;
        if let Some((when, value)) = &*last
            && when.elapsed() < FRESH
        {
            return value.clone();
        }
        let value = collect.await;
        *last = Some((Instant::now(), value.clone()));
        value
    }
}
