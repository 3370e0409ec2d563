//! Whether this process may write at this very moment.

use std::sync::Arc;

use tokio::sync::watch;

use crate::election::Leadership;

/// Asked right before every write: leadership, by the clock, and no pause.
#[derive(Clone, Debug)]
pub(crate) struct Authority {
    leadership: watch::Receiver<Leadership>,
    pause: watch::Receiver<Option<Arc<str>>>,
}

impl Authority {
    pub(crate) fn new(
        leadership: watch::Receiver<Leadership>,
        pause: watch::Receiver<Option<Arc<str>>>,
    ) -> Self {
        Self { leadership, pause }
    }

    pub(crate) fn may_act(&self) -> bool {
        self.leadership.borrow().leads() && self.pause.borrow().is_none()
    }

    /// Returns when the answer may have changed. Leadership is published anew with every
    /// renewal, so this returns every few seconds on a leader.
    pub(crate) async fn changed(&mut self) {
        // A closed channel keeps its last value: then nothing ever changes again.
        tokio::select! {
            Ok(()) = self.leadership.changed() => {}
            Ok(()) = self.pause.changed() => {}
            else => std::future::pending().await,
        }
    }
}
