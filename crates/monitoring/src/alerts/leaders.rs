//! Whether anybody judges and writes.

use super::{EAST, FOLLOWER, LEADER};
use crate::alert::{Alert, Case, Firing, Severity};

pub(super) const TWO_LEADERS: Alert = Alert {
    name: "SwimletTwoLeaders",
    severity: Severity::Critical,
    holds: "1m",
    expr: &["sum by (cluster) (swimlet_aggregator_leader) > 1"],
    summary: "{{ $value }} aggregators take themselves for the leader",
    description: "Only one may hold the Lease. Preconditions keep a stale leader's writes from landing, but this must not be.",
    cases: &[
        Case {
            about: "two lead",
            series: &[
                LEADER,
                (
                    r#"swimlet_aggregator_leader{cluster="east",instance="b"}"#,
                    "0x4 1x20",
                ),
            ],
            at: "5m",
            fires: Some(Firing {
                labels: EAST,
                summary: "2 aggregators take themselves for the leader",
            }),
        },
        Case {
            about: "a takeover seen in one scrape, and a leader in each cluster",
            series: &[
                (
                    r#"swimlet_aggregator_leader{cluster="east",instance="a"}"#,
                    "1x5 0x20",
                ),
                (
                    r#"swimlet_aggregator_leader{cluster="east",instance="b"}"#,
                    "0x4 1x20",
                ),
                (
                    r#"swimlet_aggregator_leader{cluster="west",instance="c"}"#,
                    "1x24",
                ),
            ],
            at: "5m",
            fires: None,
        },
    ],
};

pub(super) const NO_LEADER: Alert = Alert {
    name: "SwimletNoLeader",
    severity: Severity::Warning,
    // A takeover lasts 14 s at most.
    holds: "2m",
    expr: &[
        "count by (cluster) (swimlet_build_info)",
        "unless on (cluster)",
        "sum by (cluster) (swimlet_aggregator_leader) > 0",
    ],
    summary: "No aggregator leads: swimlet writes nothing",
    description: "swimlet is silent, and a dead node is found by Kubernetes' own detection alone, after 40 to 60 s.",
    cases: &[
        Case {
            about: "agents run, no aggregator leads",
            series: &[
                (
                    r#"swimlet_build_info{cluster="east",instance="n1",role="agent",version="0.1.0"}"#,
                    "1x20",
                ),
                FOLLOWER,
            ],
            at: "5m",
            fires: Some(Firing {
                labels: EAST,
                summary: "No aggregator leads: swimlet writes nothing",
            }),
        },
        Case {
            about: "a takeover",
            series: &[
                (
                    r#"swimlet_build_info{cluster="east",instance="n1",role="agent",version="0.1.0"}"#,
                    "1x20",
                ),
                (
                    r#"swimlet_aggregator_leader{cluster="east",instance="a"}"#,
                    "1x6 0x20",
                ),
                (
                    r#"swimlet_aggregator_leader{cluster="east",instance="b"}"#,
                    "0x8 1x20",
                ),
            ],
            at: "5m",
            fires: None,
        },
    ],
};

pub(super) const AGGREGATORS_MISSING: Alert = Alert {
    name: "SwimletAggregatorsMissing",
    severity: Severity::Warning,
    holds: "10m",
    expr: &["count by (cluster) (swimlet_aggregator_leader) < 2"],
    summary: "One aggregator is left: nobody takes over from it",
    description: "Three are meant to run. The next failure leaves the cluster to Kubernetes' own detection.",
    cases: &[
        Case {
            about: "two of three are gone",
            series: &[LEADER],
            at: "15m",
            fires: Some(Firing {
                labels: EAST,
                summary: "One aggregator is left: nobody takes over from it",
            }),
        },
        Case {
            about: "one of three is gone",
            series: &[LEADER, FOLLOWER],
            at: "15m",
            fires: None,
        },
    ],
};

pub(super) const ABSENT: Alert = Alert {
    name: "SwimletAbsent",
    severity: Severity::Warning,
    holds: "10m",
    expr: &["absent(swimlet_build_info)"],
    summary: "Prometheus scrapes nothing of swimlet",
    description: "swimlet does not run, or Prometheus does not find it. No other alert of swimlet can fire.",
    cases: &[
        Case {
            about: "nothing is scraped",
            series: &[("up{job=\"other\"}", "1x60")],
            at: "15m",
            fires: Some(Firing {
                labels: &[],
                summary: "Prometheus scrapes nothing of swimlet",
            }),
        },
        Case {
            about: "one agent is scraped",
            series: &[(
                r#"swimlet_build_info{instance="n1",role="agent",version="0.1.0"}"#,
                "1x60",
            )],
            at: "15m",
            fires: None,
        },
    ],
};
