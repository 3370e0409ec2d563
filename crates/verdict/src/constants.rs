//! Every constant of the judge, with its reason and its source.

use std::time::Duration;

use crate::config::Percent;

/// Silence before a write in the default profile. Shorter outages (a switch's
/// failover, a live migration's pause) heal within about 3 s.
pub const PERSISTENCE_DEFAULT: Duration = Duration::from_secs(4);
/// The same in `fast`: one probe period more than the first miss.
pub const PERSISTENCE_FAST: Duration = Duration::from_secs(1);
/// The same in `cautious`: longer than a kubelet's lease period of 10 s + 4 %, so a
/// live kubelet is heard of before.
pub const PERSISTENCE_CAUTIOUS: Duration = Duration::from_secs(15);
/// In-tree's default `--node-monitor-grace-period` (50 s since 1.32): where the data
/// plane may still live we are never faster than that.
pub const IN_TREE_GRACE: Duration = Duration::from_secs(50);
/// Time between two rounds of verification.
pub const ROUND_INTERVAL: Duration = Duration::from_secs(1);
/// The same in `fast`.
pub const ROUND_INTERVAL_FAST: Duration = Duration::from_millis(500);
/// Rounds that must have found the same: one can be lost to a burst.
pub const ROUNDS_MIN: u32 = 2;
/// Each member is probed about once in this time, by all its observers together.
pub const PROBE_PERIOD: Duration = Duration::from_secs(1);
/// Largest share of monitored nodes that may bear our Unknown (brake 2): in-tree's
/// `--unhealthy-zone-threshold` of 55 %.
pub const BRAKE_SHARE_MAX: Percent = Percent::constant(55);
/// Addresses tried of one node: two families, two interfaces each
/// ([`swimlet_protocol::member::ADDRESSES_MAX`]).
pub const ADDRESSES_MAX: usize = swimlet_protocol::member::ADDRESSES_MAX;
/// Observers kept of one member: the mesh gives it 10, or all of up to 11 members.
pub const OBSERVERS_MAX: usize = 16;
