//! What becomes of decisions, and what the API server says to swimlet.

use super::{EAST, FOLLOWER, LEADER};
use crate::alert::{Alert, Case, Firing, Severity};

pub(super) const UNKNOWN_TAKEN_BACK: Alert = Alert {
    name: "SwimletUnknownTakenBack",
    severity: Severity::Critical,
    // A kubelet that is back before its agent takes an Unknown back, too, rightly: its peers
    // reach it within a minute (verdict::constants::TAKEN_BACK_EXCUSED_WITHIN).
    holds: "2m",
    expr: &[
        r#"sum by (cluster) (increase(swimlet_notices_total{kind="taken_back"}[15m])) > 0"#,
        "and on (cluster)",
        "sum by (cluster) (",
        r#"  swimlet_nodes{verdict="MeshCutOff"}"#,
        "  and on (cluster, instance) swimlet_aggregator_leader == 1",
        ") > 0",
    ],
    summary: "swimlet wrote Ready=Unknown on a node whose kubelet lives",
    description: "The node's kubelet took it back, and still no peer reaches the node: the mesh does not see what the API server sees. Stop the writes first, then look.",
    cases: &[
        Case {
            about: "a kubelet takes one back, and no peer reaches it",
            series: &[
                (
                    r#"swimlet_notices_total{cluster="east",instance="a",kind="taken_back"}"#,
                    "0x10 1x30",
                ),
                (
                    r#"swimlet_nodes{cluster="east",instance="a",verdict="MeshCutOff"}"#,
                    "0x10 1x30",
                ),
                LEADER,
            ],
            at: "10m",
            fires: Some(Firing {
                labels: EAST,
                summary: "swimlet wrote Ready=Unknown on a node whose kubelet lives",
            }),
        },
        Case {
            about: "a dead node's kubelet is back before its agent",
            series: &[
                (
                    r#"swimlet_notices_total{cluster="east",instance="a",kind="taken_back"}"#,
                    "0x10 1x30",
                ),
                (
                    r#"swimlet_nodes{cluster="east",instance="a",verdict="MeshCutOff"}"#,
                    "0x10 1x2 0x30",
                ),
                LEADER,
            ],
            at: "10m",
            fires: None,
        },
    ],
};

/// One node is judged dead.
const DEAD: (&str, &str) = (
    r#"swimlet_nodes{cluster="east",instance="a",verdict="Unreachable"}"#,
    "0x4 1x20",
);

pub(super) const WRITER_STALLED: Alert = Alert {
    name: "SwimletWriterStalled",
    severity: Severity::Critical,
    holds: "1m",
    // An outcome that settles a decision, a refusal by the API server excepted. A decision that
    // the judge takes back while it waits has no outcome, and its node is no longer judged dead.
    expr: &[
        "sum by (cluster) (",
        r#"  swimlet_nodes{verdict=~"Unreachable|KubeletDown|ApiCutOff|HeartbeatSilent"}"#,
        "  and on (cluster, instance) swimlet_aggregator_leader == 1",
        ") > 0",
        "and on (cluster)",
        "sum by (cluster) (",
        r#"  increase(swimlet_decisions_total{verdict=~"Unreachable|KubeletDown|ApiCutOff|HeartbeatSilent"}[5m])"#,
        ") > 0",
        "unless on (cluster)",
        "sum by (cluster) (",
        r#"  increase(swimlet_condition_writes_total{outcome=~"written|would_write|superseded|gone"}[5m])"#,
        ") > 0",
    ],
    summary: "Nodes were judged dead, and none was written for 5 minutes",
    description: "The judge decides and nothing comes of it: the leader cannot write to the API server.",
    cases: &[
        Case {
            about: "decided, refused and tried again",
            series: &[
                DEAD,
                LEADER,
                (
                    r#"swimlet_decisions_total{cluster="east",instance="a",verdict="Unreachable"}"#,
                    "0x4 1x20",
                ),
                (
                    r#"swimlet_condition_writes_total{cluster="east",instance="a",outcome="written"}"#,
                    "7x24",
                ),
                (
                    r#"swimlet_condition_writes_total{cluster="east",instance="a",outcome="failed"}"#,
                    "0x4 1+1x20",
                ),
            ],
            at: "5m",
            fires: Some(Firing {
                labels: EAST,
                summary: "Nodes were judged dead, and none was written for 5 minutes",
            }),
        },
        Case {
            about: "decided and written; in another cluster nodes live",
            series: &[
                DEAD,
                LEADER,
                (
                    r#"swimlet_decisions_total{cluster="east",instance="a",verdict="Unreachable"}"#,
                    "0x4 1x20",
                ),
                (
                    r#"swimlet_condition_writes_total{cluster="east",instance="a",outcome="written"}"#,
                    "7x4 8x20",
                ),
                (
                    r#"swimlet_decisions_total{cluster="west",instance="c",verdict="Alive"}"#,
                    "0x4 1x20",
                ),
            ],
            at: "5m",
            fires: None,
        },
        Case {
            about: "decided, and taken back while it waited",
            series: &[
                LEADER,
                (
                    r#"swimlet_nodes{cluster="east",instance="a",verdict="Unreachable"}"#,
                    "0x4 1 0x20",
                ),
                (
                    r#"swimlet_decisions_total{cluster="east",instance="a",verdict="Unreachable"}"#,
                    "0x4 1x20",
                ),
                (
                    r#"swimlet_condition_writes_total{cluster="east",instance="a",outcome="written"}"#,
                    "7x24",
                ),
            ],
            at: "5m",
            fires: None,
        },
    ],
};

pub(super) const WRITES_FAILING: Alert = Alert {
    name: "SwimletWritesFailing",
    severity: Severity::Warning,
    holds: "",
    expr: &[
        r#"sum by (cluster) (increase(swimlet_condition_writes_total{outcome="failed"}[10m])) > 3"#,
    ],
    summary: "{{ printf \"%.0f\" $value }} writes of Ready=Unknown failed within 10 minutes",
    description: "The API server refuses them, or their fate is in doubt. The judge decides anew each time.",
    cases: &[
        Case {
            about: "one a minute fails",
            series: &[(
                r#"swimlet_condition_writes_total{cluster="east",instance="a",outcome="failed"}"#,
                "0+1x40",
            )],
            at: "10m",
            fires: Some(Firing {
                labels: EAST,
                summary: "20 writes of Ready=Unknown failed within 10 minutes",
            }),
        },
        Case {
            about: "one fails, many conflict with the kubelet's own write",
            series: &[
                (
                    r#"swimlet_condition_writes_total{cluster="east",instance="a",outcome="failed"}"#,
                    "0x5 1x35",
                ),
                (
                    r#"swimlet_condition_writes_total{cluster="east",instance="a",outcome="conflict"}"#,
                    "0+1x40",
                ),
            ],
            at: "10m",
            fires: None,
        },
    ],
};

pub(super) const WRITES_WITHHELD: Alert = Alert {
    name: "SwimletWritesWithheld",
    severity: Severity::Warning,
    holds: "5m",
    expr: &[
        "sum by (cluster) (",
        r#"  swimlet_nodes{verdict="Withheld"}"#,
        "  and on (cluster, instance) swimlet_aggregator_leader == 1",
        ") > 0",
    ],
    summary: "{{ $value }} silent nodes are not written, on purpose",
    description: "A brake, a hold, a pause, stale reads of the API server, or a node that is being removed keeps swimlet from writing them.",
    cases: &[
        Case {
            about: "the leader withholds two",
            series: &[
                (
                    r#"swimlet_nodes{cluster="east",instance="a",verdict="Withheld"}"#,
                    "0x4 2x20",
                ),
                LEADER,
            ],
            at: "9m",
            fires: Some(Firing {
                labels: EAST,
                summary: "2 silent nodes are not written, on purpose",
            }),
        },
        Case {
            about: "a follower's old picture",
            series: &[
                (
                    r#"swimlet_nodes{cluster="east",instance="b",verdict="Withheld"}"#,
                    "0x4 2x20",
                ),
                LEADER,
                FOLLOWER,
            ],
            at: "9m",
            fires: None,
        },
    ],
};

pub(super) const MANY_CUT_OFF_FROM_API: Alert = Alert {
    name: "SwimletManyCutOffFromApi",
    severity: Severity::Warning,
    holds: "",
    expr: &[
        r#"sum by (cluster) (increase(swimlet_notices_total{kind="api_cut_off_many"}[15m])) > 0"#,
    ],
    summary: "Many nodes say that they cannot reach the API server",
    description: "So many say so at once that it is the control plane or the way to it, and not they. swimlet writes none of them.",
    cases: &[
        Case {
            about: "the load balancer of the API server fails",
            series: &[(
                r#"swimlet_notices_total{cluster="east",instance="a",kind="api_cut_off_many"}"#,
                "0x4 1x20",
            )],
            at: "5m",
            fires: Some(Firing {
                labels: EAST,
                summary: "Many nodes say that they cannot reach the API server",
            }),
        },
        Case {
            about: "that was said before this process was scraped",
            series: &[(
                r#"swimlet_notices_total{cluster="east",instance="a",kind="api_cut_off_many"}"#,
                "3x24",
            )],
            at: "5m",
            fires: None,
        },
    ],
};

pub(super) const API_ERRORS: Alert = Alert {
    name: "SwimletApiErrors",
    severity: Severity::Warning,
    holds: "10m",
    expr: &[
        "sum by (cluster) (rate(swimlet_api_failures_total[5m]))",
        "/ sum by (cluster) (rate(swimlet_api_requests_total[5m]))",
        "> 0.1",
    ],
    summary: "{{ $value | humanizePercentage }} of swimlet's requests to the API server fail",
    description: "They are throttled, meet an unavailable server, or stay unanswered. While they do, swimlet trusts no silence of heartbeats.",
    cases: &[
        Case {
            about: "half of them are throttled",
            series: &[
                (
                    r#"swimlet_api_failures_total{cluster="east",instance="a",kind="throttled"}"#,
                    "0+10x40",
                ),
                (
                    r#"swimlet_api_failures_total{cluster="east",instance="a",kind="unanswered"}"#,
                    "0x40",
                ),
                (
                    r#"swimlet_api_requests_total{cluster="east",instance="a"}"#,
                    "0+20x40",
                ),
            ],
            at: "16m",
            fires: Some(Firing {
                labels: EAST,
                summary: "50% of swimlet's requests to the API server fail",
            }),
        },
        Case {
            about: "the API server restarts",
            series: &[
                (
                    r#"swimlet_api_failures_total{cluster="east",instance="a",kind="unavailable"}"#,
                    "0x10 10x40",
                ),
                (
                    r#"swimlet_api_requests_total{cluster="east",instance="a"}"#,
                    "0+20x50",
                ),
            ],
            at: "16m",
            fires: None,
        },
    ],
};
