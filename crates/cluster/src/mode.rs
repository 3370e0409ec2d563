//! Whether anything is written.

use std::fmt;
use std::str::FromStr;

/// Whether decisions change Nodes and Pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Change no Node and no Pod; say what would have been written.
    #[default]
    Observe,
    /// Write the condition, and mark the pods.
    Enforce,
}

/// A text that names no mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no mode; use observe or enforce")]
pub struct ModeError(String);

impl Mode {
    /// The mode as configuration and Events spell it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Observe => "observe",
            Self::Enforce => "enforce",
        }
    }
}

impl FromStr for Mode {
    type Err = ModeError;

    fn from_str(text: &str) -> Result<Self, ModeError> {
        match text {
            "observe" => Ok(Self::Observe),
            "enforce" => Ok(Self::Enforce),
            other => Err(ModeError(other.chars().take(64).collect())),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn observe_is_the_default_and_spellings_round_trip() {
        assert_eq!(Mode::default(), Mode::Observe);
        for mode in [Mode::Observe, Mode::Enforce] {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        assert!("Enforce".parse::<Mode>().is_err());
    }
}
