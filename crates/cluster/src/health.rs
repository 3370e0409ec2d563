//! Whether the API server works, by the fates of the election's calls.
//!
//! Pure, like the election itself, so that a simulator may drive both.

use std::time::Duration;

use swimlet_protocol::Moment;
use swimlet_verdict::ApiHealth;

/// Failures in a row that make an outage. One alone is a connection that a load balancer closed,
/// an API server that is being rolled, or a lost packet, and costs nothing but itself: an outage
/// makes the judge forget every silence that it was measuring.
const FAILURES_MIN: u32 = 2;
/// A failure this long after the last answer is an outage by itself: two of the election's
/// periods of 2 s, within which a working API server answers twice.
const UNANSWERED_MAX: Duration = Duration::from_secs(4);

/// Turns the fates of calls, one at a time, into what [`swimlet_verdict::Input::Api`] tells.
#[derive(Clone, Copy, Debug)]
pub struct CallHealth {
    health: ApiHealth,
    failures: u32,
    answered: Option<Moment>,
}

impl CallHealth {
    /// Nothing was answered yet, so nothing works yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            health: ApiHealth::Failing,
            failures: 0,
            answered: None,
        }
    }

    /// Takes in the fate of a call that ended at `now`; a refusal is an answer too.
    ///
    /// Failing is told after two failures in a row, or after one that comes more than 4 s after
    /// the last answer; Working with the next answer.
    pub fn note(&mut self, now: Moment, answered: bool) -> ApiHealth {
        if answered {
            self.failures = 0;
            self.answered = Some(now);
            self.health = ApiHealth::Working;
        } else {
            self.failures = self.failures.saturating_add(1);
            let long = self
                .answered
                .is_none_or(|at| now.since(at) > UNANSWERED_MAX);
            if self.failures >= FAILURES_MIN || long {
                self.health = ApiHealth::Failing;
            }
        }
        self.health
    }
}

impl Default for CallHealth {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Moment {
        Moment::ORIGIN + Duration::from_millis(ms)
    }

    /// Guards the silences that the judge measures: one lost call does not throw them away.
    #[test]
    fn one_failed_call_is_no_outage() {
        let mut health = CallHealth::new();
        assert_eq!(health.note(at(0), true), ApiHealth::Working);
        for round in 0..50 {
            let start = 2_000 * round;
            assert_eq!(health.note(at(start + 1_000), false), ApiHealth::Working);
            assert_eq!(health.note(at(start + 2_000), true), ApiHealth::Working);
        }
    }

    /// Guards the other side: an outage is told with the second failure, and with the first when
    /// that took long; and only an answer ends it.
    #[test]
    fn two_failures_or_a_long_one_are_an_outage() {
        let mut health = CallHealth::new();
        assert_eq!(
            health.note(at(0), false),
            ApiHealth::Failing,
            "never answered"
        );
        health.note(at(1_000), true);
        assert_eq!(health.note(at(5_000), false), ApiHealth::Working);
        assert_eq!(health.note(at(5_001), false), ApiHealth::Failing);
        assert_eq!(health.note(at(6_000), true), ApiHealth::Working);
        assert_eq!(health.note(at(10_001), false), ApiHealth::Failing);
        assert_eq!(health.note(at(10_002), false), ApiHealth::Failing);
        assert_eq!(health.note(at(10_003), true), ApiHealth::Working);
    }
}
