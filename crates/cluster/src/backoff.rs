//! Exponential back-off with jitter.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// Grows from `first` by doubling to `most`, each time with up to half as much again, so that
/// clients that failed together do not come back together.
#[derive(Debug)]
pub(crate) struct Backoff {
    first: Duration,
    most: Duration,
    failures: u32,
    rng: SmallRng,
}

impl Backoff {
    pub(crate) fn new(first: Duration, most: Duration, seed: u64) -> Self {
        Self {
            first,
            most,
            failures: 0,
            rng: SmallRng::seed_from_u64(seed),
        }
    }

    /// A success: the next failure waits for the first duration again.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    /// How long to wait after one more failure, and at least as long as the server asked for.
    pub(crate) fn next(&mut self, asked: Option<Duration>) -> Duration {
        let doubled = self.first.saturating_mul(1 << self.failures.min(16));
        self.failures = self.failures.saturating_add(1);
        let base = doubled.min(self.most).max(asked.unwrap_or_default());
        base.mul_f64(1.0 + self.rng.random_range(0.0..0.5))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_to_its_most_and_starts_anew_after_a_success() {
        let first = Duration::from_millis(100);
        let most = Duration::from_secs(2);
        let mut backoff = Backoff::new(first, most, 1);
        let mut last = Duration::ZERO;
        for _ in 0..40 {
            last = backoff.next(None);
            assert!(last >= first && last <= most.mul_f64(1.5), "{last:?}");
        }
        assert!(last >= most);
        backoff.reset();
        assert!(backoff.next(None) < first.mul_f64(1.5));
    }

    #[test]
    fn never_comes_back_before_the_server_asked() {
        let mut backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(2), 1);
        let asked = Duration::from_secs(7);
        assert!(backoff.next(Some(asked)) >= asked);
    }
}
