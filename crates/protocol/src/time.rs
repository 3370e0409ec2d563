//! The clock of the pure cores.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};
use std::time::Duration;

/// A point on a monotonic clock, in microseconds since an origin that only the
/// clock's owner knows.
///
/// The pure cores are handed a `Moment` with each input and never read a clock,
/// so the same code runs in real and in virtual time. Two moments of different
/// processes must not be compared: what crosses the wire is an age.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

impl Moment {
    /// The clock's origin.
    pub const ORIGIN: Self = Self(0);

    /// A moment that lies `micros` µs after the origin.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Microseconds since the origin.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Time passed since `earlier`; zero if `earlier` lies ahead.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }

    /// The moment `ago` before this one, at the earliest the origin.
    ///
    /// Used to turn an age that a peer reported into a moment of our own clock.
    #[must_use]
    pub fn before(self, ago: Duration) -> Self {
        Self(self.0.saturating_sub(micros(ago)))
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    fn add(self, rhs: Duration) -> Self {
        Self(self.0.saturating_add(micros(rhs)))
    }
}

impl AddAssign<Duration> for Moment {
    fn add_assign(&mut self, rhs: Duration) {
        *self = *self + rhs;
    }
}

impl Sub for Moment {
    type Output = Duration;

    fn sub(self, rhs: Self) -> Duration {
        self.since(rhs)
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}s", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates_instead_of_wrapping() {
        let late = Moment::from_micros(u64::MAX);
        assert_eq!(late + Duration::from_secs(1), late);
        assert_eq!(
            Moment::ORIGIN.before(Duration::from_secs(1)),
            Moment::ORIGIN
        );
        assert_eq!(Moment::ORIGIN - late, Duration::ZERO);
        assert_eq!(
            (Moment::ORIGIN + Duration::from_millis(5)).since(Moment::ORIGIN),
            Duration::from_millis(5)
        );
    }
}
