//! Local health: how far a member trusts its own clock and ears.

use std::time::Duration;

use crate::constants::HEALTH_MAX;

/// Lifeguard's local health multiplier (arXiv 1707.00788 §IV-A).
///
/// Raised by missed probes that others could make, by refutations of ourselves and
/// by reports of co-observers that did not come; lowered by each answer in time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Health(u8);

impl Health {
    /// The multiplier: 0 is healthy, [`HEALTH_MAX`] is sick.
    pub(crate) const fn score(self) -> u8 {
        self.0
    }

    pub(crate) fn worsen(&mut self) {
        self.0 = (self.0 + 1).min(HEALTH_MAX);
    }

    pub(crate) fn improve(&mut self) {
        self.0 = self.0.saturating_sub(1);
    }

    /// `base` times the multiplier plus one.
    pub(crate) fn stretch(self, base: Duration) -> Duration {
        base * (u32::from(self.0) + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_stays_within_its_bounds_and_stretches() {
        let mut health = Health::default();
        health.improve();
        assert_eq!(
            health.stretch(Duration::from_secs(1)),
            Duration::from_secs(1)
        );
        for _ in 0..20 {
            health.worsen();
        }
        assert_eq!(health.score(), HEALTH_MAX);
        assert_eq!(
            health.stretch(Duration::from_secs(1)),
            Duration::from_secs(9)
        );
    }
}
