//! The edge's clock: the one place where the pure parts' moments meet the runtime's clock.

use std::time::Duration;

use swimlet_protocol::Moment;
use tokio::time::Instant;

/// A monotonic clock with an origin of its own.
///
/// It follows tokio's clock, so tests may pause it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: Instant,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self {
            origin: Instant::now(),
        }
    }

    pub(crate) fn now(&self) -> Moment {
        Moment::ORIGIN + self.origin.elapsed()
    }

    pub(crate) fn instant(&self, moment: Moment) -> Instant {
        self.origin + Duration::from_micros(moment.as_micros())
    }
}
