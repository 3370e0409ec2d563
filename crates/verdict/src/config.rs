//! How cautious the judge is.

use std::str::FromStr;
use std::time::Duration;

use swimlet_protocol::MemberKey;

use crate::constants;

/// What a [`crate::Judge`] is configured with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// How fast, and how cautious.
    pub profile: Profile,
    /// The aggregator this judge is part of; it is a verifier too.
    pub me: MemberKey,
    /// Largest share of the monitored nodes that may bear our Unknown at once (brake 2).
    pub brake_share_max: Percent,
}

/// How fast a death is written, and how sure of it we are before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Profile {
    /// 4 s of silence, a round a second: p50 about 5 s.
    #[default]
    Default,
    /// 1 s of silence, a round each half second: p50 about 3 s.
    Fast,
    /// 15 s of silence: longer than a kubelet's lease period, so a node that only
    /// its peers have lost is never written.
    Cautious,
}

/// A share in whole percent, 1–100.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Percent(u8);

/// A text that names no profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no profile; use default, fast or cautious")]
pub struct ProfileError(String);

/// Why a number is not a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a share must be 1 to 100 percent, this one is {0}")]
pub struct PercentError(pub u8);

impl Config {
    /// The defaults for the aggregator `me`.
    #[must_use]
    pub const fn new(me: MemberKey) -> Self {
        Self {
            profile: Profile::Default,
            me,
            brake_share_max: constants::BRAKE_SHARE_MAX,
        }
    }
}

impl Profile {
    /// How long a node must have been silent, counted from the earliest unanswered
    /// probe that two hosts confirm.
    #[must_use]
    pub const fn persistence(self) -> Duration {
        match self {
            Self::Default => constants::PERSISTENCE_DEFAULT,
            Self::Fast => constants::PERSISTENCE_FAST,
            Self::Cautious => constants::PERSISTENCE_CAUTIOUS,
        }
    }

    /// How far the two Lease reads that a decision compares lie apart, or farther.
    #[must_use]
    pub fn lease_watched(self) -> Duration {
        match self {
            Self::Default | Self::Fast => self.persistence() / constants::LEASE_WATCHED_DIVISOR,
            Self::Cautious => constants::LEASE_WATCHED_CAUTIOUS,
        }
    }

    /// Time between two rounds of verification.
    #[must_use]
    pub const fn round_interval(self) -> Duration {
        match self {
            Self::Default | Self::Cautious => constants::ROUND_INTERVAL,
            Self::Fast => constants::ROUND_INTERVAL_FAST,
        }
    }

    /// One full detection, from the first missed probe to a decision: what a new
    /// leader waits before its first write.
    #[must_use]
    pub fn detection(self) -> Duration {
        self.persistence() + self.round_interval() * constants::ROUNDS_MIN + constants::PROBE_PERIOD
    }

    /// The profile's name in configuration and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Fast => "fast",
            Self::Cautious => "cautious",
        }
    }
}

impl FromStr for Profile {
    type Err = ProfileError;

    fn from_str(text: &str) -> Result<Self, ProfileError> {
        [Self::Default, Self::Fast, Self::Cautious]
            .into_iter()
            .find(|profile| profile.as_str() == text)
            .ok_or_else(|| ProfileError(text.chars().take(64).collect()))
    }
}

impl Percent {
    /// A share in percent.
    ///
    /// # Errors
    /// If it is not 1 to 100.
    pub const fn new(percent: u8) -> Result<Self, PercentError> {
        if percent >= 1 && percent <= 100 {
            Ok(Self(percent))
        } else {
            Err(PercentError(percent))
        }
    }

    /// Whether `part` of `whole` is more than this share.
    #[must_use]
    pub const fn exceeded_by(self, part: usize, whole: usize) -> bool {
        part.saturating_mul(100) > whole.saturating_mul(self.0 as usize)
    }

    /// The number, 1–100.
    #[must_use]
    pub const fn as_u8(self) -> u8 {
        self.0
    }

    /// A share that is known to be valid where it is written down.
    pub(crate) const fn constant(percent: u8) -> Self {
        assert!(percent >= 1 && percent <= 100);
        Self(percent)
    }
}
