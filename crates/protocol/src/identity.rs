//! Who a member is: the one name that its certificate lets it speak under.

use std::fmt;
use std::hash::Hasher;
use std::str::FromStr;

use bincode::{Decode, Encode};
use siphasher::sip::SipHasher24;

use crate::name::{ClusterId, NameError, NodeName};

/// What a member may do in the mesh; stands in its certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
pub enum Role {
    /// Runs on a node and speaks for it.
    Agent,
    /// Is no node; collects accusations and may ask for verification.
    Aggregator,
}

/// A member's full name: cluster, role and node (or pod) name.
///
/// Written as a SPIFFE ID, `spiffe://CLUSTER/node/NAME` or
/// `spiffe://CLUSTER/aggregator/NAME`, it is the URI SAN of the member's certificate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    /// The cluster; a member of another cluster is refused.
    pub cluster: ClusterId,
    /// Agent or aggregator.
    pub role: Role,
    /// The node's name, or the aggregator's pod name.
    pub name: NodeName,
}

/// A 64-bit keyed hash of a member's role and name: how frames and tables call a member.
///
/// `SipHash-2-4`, keyed by the cluster id, so every member of a cluster computes
/// the same key. With 15,000 names two keys collide with a probability below
/// 10⁻¹¹; the later of two colliding members is refused at join.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberKey(pub u64);

/// Why a text is not the identity of a member.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// Not of the form `spiffe://CLUSTER/ROLE/NAME`.
    #[error(
        "{uri:?} is not of the form spiffe://CLUSTER/node/NAME or spiffe://CLUSTER/aggregator/NAME"
    )]
    Form {
        /// The refused URI, cut to 128 characters.
        uri: String,
    },
    /// Cluster or name break their rules.
    #[error("the identity's {0}")]
    Name(#[from] NameError),
}

impl Role {
    /// The path segment that stands for the role in a SPIFFE ID.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Agent => "node",
            Self::Aggregator => "aggregator",
        }
    }
}

impl Identity {
    /// The key under which the cluster's members know this one.
    #[must_use]
    pub fn key(&self) -> MemberKey {
        MemberKey::of(&self.cluster, self.role, &self.name)
    }
}

impl MemberKey {
    /// The key of the member with this role and name in this cluster.
    #[must_use]
    pub fn of(cluster: &ClusterId, role: Role, name: &NodeName) -> Self {
        let seed = {
            let mut hasher = SipHasher24::new_with_keys(0, 0);
            hasher.write(cluster.as_str().as_bytes());
            hasher.finish()
        };
        let mut hasher = SipHasher24::new_with_keys(seed, 0);
        hasher.write(role.as_str().as_bytes());
        hasher.write_u8(b'/');
        hasher.write(name.as_str().as_bytes());
        Self(hasher.finish())
    }
}

impl FromStr for Identity {
    type Err = IdentityError;

    fn from_str(uri: &str) -> Result<Self, IdentityError> {
        let form = || IdentityError::Form {
            uri: uri.chars().take(128).collect(),
        };
        let rest = uri.strip_prefix("spiffe://").ok_or_else(form)?;
        let mut parts = rest.splitn(3, '/');
        let (Some(cluster), Some(role), Some(name)) = (parts.next(), parts.next(), parts.next())
        else {
            return Err(form());
        };
        let role = match role {
            "node" => Role::Agent,
            "aggregator" => Role::Aggregator,
            _ => return Err(form()),
        };
        Ok(Self {
            cluster: cluster.parse()?,
            role,
            name: name.parse()?,
        })
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "spiffe://{}/{}/{}",
            self.cluster,
            self.role.as_str(),
            self.name
        )
    }
}

impl fmt::Debug for MemberKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(uri: &str) -> Identity {
        uri.parse().unwrap()
    }

    #[test]
    fn spiffe_ids_round_trip() {
        for uri in [
            "spiffe://prod-1/node/ip-10-0-0-1.internal",
            "spiffe://c/aggregator/agg-0",
        ] {
            assert_eq!(identity(uri).to_string(), uri);
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for uri in [
            "",
            "spiffe://",
            "https://prod/node/a",
            "spiffe://prod/node",
            "spiffe://prod/node/",
            "spiffe://prod/kubelet/a",
            "spiffe://prod/node/a/b",
            "spiffe://PROD/node/a",
        ] {
            assert!(uri.parse::<Identity>().is_err(), "{uri}");
        }
    }

    #[test]
    fn keys_differ_by_cluster_role_and_name() {
        let keys = [
            identity("spiffe://a/node/x").key(),
            identity("spiffe://b/node/x").key(),
            identity("spiffe://a/aggregator/x").key(),
            identity("spiffe://a/node/y").key(),
        ];
        for (i, key) in keys.iter().enumerate() {
            assert!(!keys[..i].contains(key));
        }
        // Frozen: members of two versions must agree on it.
        assert_eq!(keys[0], identity("spiffe://a/node/x").key());
    }
}
