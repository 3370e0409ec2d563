//! Every alert, with the cases that hold it.
//!
//! Nodes by verdict are read from the aggregator that leads: the others keep the same
//! picture but verify nothing, so their verdicts lag. Sums are by `cluster`, a label that
//! Prometheus adds where it watches several clusters, and that may be absent.
//!
//! Severities: what wakes somebody is a node that is dead and not written, was written
//! wrongly, or a cluster that falls. Without swimlet Kubernetes detects a dead node by
//! itself in 40 to 60 s, so swimlet's own absence waits for the morning.

mod brakes;
mod cover;
mod leaders;
mod members;
mod writes;

use crate::alert::Alert;

/// Every alert, the most urgent first.
pub const ALL: &[Alert] = &[
    writes::UNKNOWN_TAKEN_BACK,
    brakes::BRAKE_ON,
    brakes::MANY_FELL,
    brakes::COVERED_BY_NONE,
    writes::WRITER_STALLED,
    leaders::TWO_LEADERS,
    members::CERTIFICATE_EXPIRED,
    leaders::NO_LEADER,
    leaders::AGGREGATORS_MISSING,
    leaders::ABSENT,
    writes::WRITES_FAILING,
    writes::WRITES_WITHHELD,
    cover::MEMBERS_MISSING,
    cover::AGENT_MISSING,
    cover::AGENT_LEFT,
    cover::MESH_CUT_OFF,
    cover::UNVERIFIABLE,
    writes::MANY_CUT_OFF_FROM_API,
    members::VIEWS_DIFFER,
    members::MEMBERS_STARVED,
    members::CERTIFICATE_EXPIRES_SOON,
    writes::API_ERRORS,
    members::RESTART_LOOP,
    members::QUEUE_OVERFLOW,
    members::VERSION_SKEW,
];

const EAST: &[(&str, &str)] = &[("cluster", "east")];
/// Two aggregators; the first one leads.
const LEADER: (&str, &str) = (
    r#"swimlet_aggregator_leader{cluster="east",instance="a"}"#,
    "1x240",
);
const FOLLOWER: (&str, &str) = (
    r#"swimlet_aggregator_leader{cluster="east",instance="b"}"#,
    "0x240",
);
