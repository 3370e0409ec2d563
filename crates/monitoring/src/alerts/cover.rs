//! Nodes that the mesh does not cover.

use super::{EAST, LEADER};
use crate::alert::{Alert, Case, Firing, Severity};

pub(super) const MEMBERS_MISSING: Alert = Alert {
    name: "SwimletMembersMissing",
    severity: Severity::Warning,
    holds: "10m",
    // Aggregators are members, too: some members less than a tenth may hide behind them.
    expr: &[
        "max by (cluster) (",
        r#"  swimlet_mesh_members{state="alive"}"#,
        "  and on (cluster, instance) swimlet_aggregator_leader == 1",
        ")",
        "< on (cluster) 0.9 * sum by (cluster) (",
        r#"  swimlet_nodes{verdict!="Unmonitored"}"#,
        "  and on (cluster, instance) swimlet_aggregator_leader == 1",
        ")",
    ],
    summary: "The mesh has {{ $value }} live members, more than a tenth fewer than there are nodes",
    description: "Nodes that had an agent have none in the mesh. Each of them is one witness less, and is itself watched by its kubelet's port alone.",
    cases: &[
        Case {
            about: "80 members, 100 nodes",
            series: &[
                (
                    r#"swimlet_mesh_members{cluster="east",instance="a",state="alive"}"#,
                    "103x4 80x40",
                ),
                (
                    r#"swimlet_nodes{cluster="east",instance="a",verdict="Alive"}"#,
                    "100x4 80x40",
                ),
                (
                    r#"swimlet_nodes{cluster="east",instance="a",verdict="AgentMissing"}"#,
                    "0x4 20x40",
                ),
                LEADER,
            ],
            at: "15m",
            fires: Some(Firing {
                labels: EAST,
                summary: "The mesh has 80 live members, more than a tenth fewer than there are nodes",
            }),
        },
        Case {
            about: "all are there but for virtual nodes",
            series: &[
                (
                    r#"swimlet_mesh_members{cluster="east",instance="a",state="alive"}"#,
                    "103x60",
                ),
                (
                    r#"swimlet_nodes{cluster="east",instance="a",verdict="Alive"}"#,
                    "100x60",
                ),
                (
                    r#"swimlet_nodes{cluster="east",instance="a",verdict="Unmonitored"}"#,
                    "50x60",
                ),
                LEADER,
            ],
            at: "15m",
            fires: None,
        },
    ],
};

pub(super) const AGENT_MISSING: Alert = Alert {
    name: "SwimletAgentMissing",
    severity: Severity::Warning,
    holds: "10m",
    expr: &[
        "sum by (cluster) (",
        r#"  swimlet_nodes{verdict="AgentMissing"}"#,
        "  and on (cluster, instance) swimlet_aggregator_leader == 1",
        ") > 0",
    ],
    summary: "The agents of {{ $value }} live nodes do not answer",
    description: "Their kubelets answer, their agents do not: killed, starved, or behind a firewall that closes the mesh port. These nodes are covered by direct checks alone.",
    cases: &[
        Case {
            about: "an agent was killed",
            series: &[
                (
                    r#"swimlet_nodes{cluster="east",instance="a",verdict="AgentMissing"}"#,
                    "0x4 1x40",
                ),
                LEADER,
            ],
            at: "15m",
            fires: Some(Firing {
                labels: EAST,
                summary: "The agents of 1 live nodes do not answer",
            }),
        },
        Case {
            about: "an agent restarts",
            series: &[
                (
                    r#"swimlet_nodes{cluster="east",instance="a",verdict="AgentMissing"}"#,
                    "0x4 1x4 0x40",
                ),
                LEADER,
            ],
            at: "15m",
            fires: None,
        },
    ],
};

pub(super) const AGENT_LEFT: Alert = Alert {
    name: "SwimletAgentLeft",
    severity: Severity::Warning,
    holds: "15m",
    expr: &[
        "sum by (cluster) (",
        r#"  swimlet_nodes{verdict="Left"}"#,
        "  and on (cluster, instance) swimlet_aggregator_leader == 1",
        ") > 0",
    ],
    summary: "The agents of {{ $value }} nodes said goodbye and did not come back",
    description: "They stopped on purpose. These nodes are covered by direct checks of their kubelets alone.",
    cases: &[
        Case {
            about: "an agent was evicted and is not started again",
            series: &[
                (
                    r#"swimlet_nodes{cluster="east",instance="a",verdict="Left"}"#,
                    "0x4 1x60",
                ),
                LEADER,
            ],
            at: "20m",
            fires: Some(Firing {
                labels: EAST,
                summary: "The agents of 1 nodes said goodbye and did not come back",
            }),
        },
        Case {
            about: "agents are rolled for 10 minutes",
            series: &[
                (
                    r#"swimlet_nodes{cluster="east",instance="a",verdict="Left"}"#,
                    "0x4 5x20 0x40",
                ),
                LEADER,
            ],
            at: "20m",
            fires: None,
        },
    ],
};

pub(super) const MESH_CUT_OFF: Alert = Alert {
    name: "SwimletMeshCutOff",
    severity: Severity::Warning,
    holds: "5m",
    expr: &[
        "sum by (cluster) (",
        r#"  swimlet_nodes{verdict="MeshCutOff"}"#,
        "  and on (cluster, instance) swimlet_aggregator_leader == 1",
        ") > 0",
    ],
    summary: "No peer reaches {{ $value }} nodes whose kubelets reach the API server",
    description: "Their network to the other nodes is broken, their network to the API server is not. swimlet does not write them; their pods are probably not reached either.",
    cases: &[
        Case {
            about: "a node is cut off from its peers",
            series: &[
                (
                    r#"swimlet_nodes{cluster="east",instance="a",verdict="MeshCutOff"}"#,
                    "0x4 1x40",
                ),
                LEADER,
            ],
            at: "9m",
            fires: Some(Firing {
                labels: EAST,
                summary: "No peer reaches 1 nodes whose kubelets reach the API server",
            }),
        },
        Case {
            about: "for a minute",
            series: &[
                (
                    r#"swimlet_nodes{cluster="east",instance="a",verdict="MeshCutOff"}"#,
                    "0x4 1x2 0x40",
                ),
                LEADER,
            ],
            at: "9m",
            fires: None,
        },
    ],
};

pub(super) const UNVERIFIABLE: Alert = Alert {
    name: "SwimletUnverifiable",
    severity: Severity::Warning,
    holds: "5m",
    expr: &[
        "sum by (cluster) (",
        r#"  swimlet_nodes{verdict="Unverifiable"}"#,
        "  and on (cluster, instance) swimlet_aggregator_leader == 1",
        ") > 0",
    ],
    summary: "{{ $value }} silent nodes cannot be verified",
    description: "Too few hosts ever reached them for their silence to count. swimlet does not write them; Kubernetes' own detection does.",
    cases: &[
        Case {
            about: "a silent node with no path to it",
            series: &[
                (
                    r#"swimlet_nodes{cluster="east",instance="a",verdict="Unverifiable"}"#,
                    "0x4 1x40",
                ),
                LEADER,
            ],
            at: "9m",
            fires: Some(Firing {
                labels: EAST,
                summary: "1 silent nodes cannot be verified",
            }),
        },
        Case {
            about: "a silent node that is written",
            series: &[
                (
                    r#"swimlet_nodes{cluster="east",instance="a",verdict="Unverifiable"}"#,
                    "0x44",
                ),
                (
                    r#"swimlet_nodes{cluster="east",instance="a",verdict="Unreachable"}"#,
                    "0x4 1x40",
                ),
                LEADER,
            ],
            at: "9m",
            fires: None,
        },
    ],
};
