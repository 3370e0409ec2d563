//! The machine's monotonic clock, as the pure cores want it.

use swimlet_protocol::Moment;
use tokio::time::Instant;

/// A monotonic clock whose origin is its creation.
///
/// Built on tokio's clock, so that tests may pause it. Copies share the origin:
/// moments of two copies can be compared.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
}

impl Clock {
    /// A clock that starts now.
    #[must_use]
    pub fn start() -> Self {
        Self {
            origin: Instant::now(),
        }
    }

    /// The time since the origin.
    #[must_use]
    pub fn now(&self) -> Moment {
        Moment::ORIGIN + self.origin.elapsed()
    }

    /// When `moment` is, for a timer.
    #[must_use]
    pub fn instant(&self, moment: Moment) -> Instant {
        self.origin + moment.since(Moment::ORIGIN)
    }
}
