//! Names that are parsed once and valid ever after.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Longest name of a Node, in bytes (RFC 1123 subdomain, as the API server has it).
pub const NODE_NAME_BYTES_MAX: usize = 253;
/// Longest label value, which a zone is, in bytes.
pub const ZONE_BYTES_MAX: usize = 63;
/// Longest cluster id, in bytes: it is the trust domain of a SPIFFE ID, which
/// SPIFFE bounds at 255; we stay below a DNS label's length.
pub const CLUSTER_ID_BYTES_MAX: usize = 63;

/// The name of a Node, or of an aggregator (its pod's name, which follows the same rule).
///
/// Cheap to clone: the text is shared.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeName(Arc<str>);

/// The zone a member runs in, as `topology.kubernetes.io/zone` has it; may be empty.
///
/// Cloud zones are label values; anything printable within the length is taken,
/// because a zone is only ever compared, never interpreted.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Zone(Arc<str>);

/// The cluster a member belongs to; the trust domain of its certificate.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterId(Arc<str>);

/// Why a text is not a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The text is empty.
    #[error("a {what} must not be empty")]
    Empty {
        /// What was being parsed.
        what: &'static str,
    },
    /// The text is longer than the limit.
    #[error("a {what} may have {max} bytes at most, this one has {len}")]
    TooLong {
        /// What was being parsed.
        what: &'static str,
        /// Length of the refused text in bytes.
        len: usize,
        /// Longest allowed length in bytes.
        max: usize,
    },
    /// A character stands where it must not.
    #[error("a {what} must be {rule}; {found:?} is not")]
    Character {
        /// What was being parsed.
        what: &'static str,
        /// The rule that was broken.
        rule: &'static str,
        /// The refused text, cut to 64 characters.
        found: String,
    },
}

impl NodeName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Zone {
    /// The zone as text; empty if unknown.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether no zone is known.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        self.0.is_empty()
    }
}

impl ClusterId {
    /// The cluster id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for NodeName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        const WHAT: &str = "node name";
        bounded(WHAT, text, NODE_NAME_BYTES_MAX)?;
        let label_is_valid = |label: &str| {
            let edge = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
            let bytes = label.as_bytes();
            matches!((bytes.first(), bytes.last()), (Some(&a), Some(&z)) if edge(a) && edge(z))
                && bytes.iter().all(|&c| edge(c) || c == b'-')
        };
        if text.split('.').all(label_is_valid) {
            Ok(Self(text.into()))
        } else {
            Err(character(
                WHAT,
                "a lower-case RFC 1123 subdomain (a-z, 0-9, '-' and '.')",
                text,
            ))
        }
    }
}

impl FromStr for Zone {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        const WHAT: &str = "zone";
        if text.len() > ZONE_BYTES_MAX {
            return Err(too_long(WHAT, text, ZONE_BYTES_MAX));
        }
        if text.chars().any(char::is_control) {
            return Err(character(WHAT, "free of control characters", text));
        }
        Ok(Self(text.into()))
    }
}

impl FromStr for ClusterId {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        const WHAT: &str = "cluster id";
        bounded(WHAT, text, CLUSTER_ID_BYTES_MAX)?;
        let allowed = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || b"-._".contains(&c);
        if text.bytes().all(allowed) {
            Ok(Self(text.into()))
        } else {
            Err(character(
                WHAT,
                "a SPIFFE trust domain (a-z, 0-9, '-', '.' and '_')",
                text,
            ))
        }
    }
}

macro_rules! shown_as_text {
    ($($name:ty),+) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }
    )+};
}

shown_as_text!(NodeName, Zone, ClusterId);

fn bounded(what: &'static str, text: &str, max: usize) -> Result<(), NameError> {
    if text.is_empty() {
        return Err(NameError::Empty { what });
    }
    if text.len() > max {
        return Err(too_long(what, text, max));
    }
    Ok(())
}

fn too_long(what: &'static str, text: &str, max: usize) -> NameError {
    NameError::TooLong {
        what,
        len: text.len(),
        max,
    }
}

fn character(what: &'static str, rule: &'static str, text: &str) -> NameError {
    NameError::Character {
        what,
        rule,
        found: text.chars().take(64).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_names_follow_rfc_1123() {
        let longest = "a".repeat(253);
        for good in [
            "a",
            "node-1",
            "ip-10-0-0-1.eu-west-1.compute.internal",
            "0",
            &longest,
        ] {
            assert!(good.parse::<NodeName>().is_ok(), "{good}");
        }
        let over = "a".repeat(254);
        for bad in [
            "", "A", "-a", "a-", "a..b", ".a", "a.", "a_b", "ü", "a b", &over,
        ] {
            assert!(bad.parse::<NodeName>().is_err(), "{bad}");
        }
    }

    #[test]
    fn zones_are_label_values_and_may_be_unknown() {
        assert!("".parse::<Zone>().unwrap().is_unknown());
        assert!("eu-west-1a".parse::<Zone>().is_ok());
        assert!("a\nb".parse::<Zone>().is_err());
        assert!("z".repeat(64).parse::<Zone>().is_err());
    }

    #[test]
    fn a_message_names_the_rule_and_the_text() {
        let error = "Node_1".parse::<NodeName>().unwrap_err().to_string();
        assert!(
            error.contains("RFC 1123") && error.contains("Node_1"),
            "{error}"
        );
    }
}
