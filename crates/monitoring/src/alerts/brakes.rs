//! What holds the writes of many nodes back.

use super::{EAST, LEADER};
use crate::alert::{Alert, Case, Firing, Severity};

pub(super) const BRAKE_ON: Alert = Alert {
    name: "SwimletBrakeOn",
    severity: Severity::Critical,
    holds: "1m",
    expr: &[r#"max by (cluster, brake) (swimlet_brake_engaged{brake=~"minority|share"}) == 1"#],
    summary: "The brake {{ $labels.brake }} is on: swimlet writes no more nodes",
    description: "So many nodes are silent that swimlet trusts its own view no longer. Either a large part of the cluster is down, or the network between the nodes is.",
    cases: &[
        Case {
            about: "one aggregator sees a minority",
            series: &[
                (
                    r#"swimlet_brake_engaged{cluster="east",instance="a",brake="minority"}"#,
                    "0x4 1x20",
                ),
                (
                    r#"swimlet_brake_engaged{cluster="east",instance="b",brake="minority"}"#,
                    "0x24",
                ),
            ],
            at: "5m",
            fires: Some(Firing {
                labels: &[("cluster", "east"), ("brake", "minority")],
                summary: "The brake minority is on: swimlet writes no more nodes",
            }),
        },
        Case {
            about: "on for a scrape, and other brakes",
            series: &[
                (
                    r#"swimlet_brake_engaged{cluster="east",instance="a",brake="minority"}"#,
                    "0x4 1 0x20",
                ),
                (
                    r#"swimlet_brake_engaged{cluster="east",instance="a",brake="graded"}"#,
                    "1x20",
                ),
            ],
            at: "5m",
            fires: None,
        },
    ],
};

pub(super) const MANY_FELL: Alert = Alert {
    name: "SwimletManyNodesFell",
    severity: Severity::Critical,
    holds: "",
    // It is on while many fell within the last minute: a scrape may miss it later.
    expr: &[r#"max by (cluster) (max_over_time(swimlet_brake_engaged{brake="graded"}[5m])) == 1"#],
    summary: "More than a tenth of the nodes fell silent within a minute",
    description: "A rack, a zone or the network between the nodes has failed. swimlet writes these nodes only as far as every other zone confirms it.",
    cases: &[
        Case {
            about: "a rack falls, and the minute is over",
            series: &[(
                r#"swimlet_brake_engaged{cluster="east",instance="a",brake="graded"}"#,
                "0x4 1x2 0x20",
            )],
            at: "6m",
            fires: Some(Firing {
                labels: EAST,
                summary: "More than a tenth of the nodes fell silent within a minute",
            }),
        },
        Case {
            about: "that was a while ago",
            series: &[(
                r#"swimlet_brake_engaged{cluster="east",instance="a",brake="graded"}"#,
                "0x4 1x2 0x40",
            )],
            at: "12m",
            fires: None,
        },
    ],
};

pub(super) const COVERED_BY_NONE: Alert = Alert {
    name: "SwimletCoveredByNone",
    severity: Severity::Critical,
    holds: "",
    expr: &[r#"max by (cluster) (swimlet_brake_engaged{brake="covered-by-none"}) == 1"#],
    summary: "More than half of the agents left within minutes: nodes are covered by none",
    description: "The agents were stopped on purpose or by a bad roll-out. swimlet writes nothing; Kubernetes' own detection alone is on.",
    cases: &[
        Case {
            about: "the agents were deleted",
            series: &[(
                r#"swimlet_brake_engaged{cluster="east",instance="a",brake="covered-by-none"}"#,
                "0x4 1x20",
            )],
            at: "4m",
            fires: Some(Firing {
                labels: EAST,
                summary: "More than half of the agents left within minutes: nodes are covered by none",
            }),
        },
        Case {
            about: "agents are rolled",
            series: &[
                (
                    r#"swimlet_brake_engaged{cluster="east",instance="a",brake="covered-by-none"}"#,
                    "0x20",
                ),
                (
                    r#"swimlet_nodes{cluster="east",instance="a",verdict="Left"}"#,
                    "0x4 3x16",
                ),
                LEADER,
            ],
            at: "4m",
            fires: None,
        },
    ],
};
