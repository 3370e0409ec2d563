//! What somebody who was woken looks at first: is swimlet right, wrong, or silent?

use super::{Bound, Colour, Kind, Panel, Row, Unit, by};

/// Nought is right, anything else is worth a look.
const NONE_IS_RIGHT: Kind = Kind::Stat(&[
    Bound(f64::NEG_INFINITY, Colour::Right),
    Bound(1.0, Colour::Doubtful),
]);
/// Nought is right, anything else is wrong.
const ANY_IS_WRONG: Kind = Kind::Stat(&[
    Bound(f64::NEG_INFINITY, Colour::Right),
    Bound(1.0, Colour::Wrong),
]);
const NEUTRAL: Kind = Kind::Stat(&[Bound(f64::NEG_INFINITY, Colour::Neutral)]);

pub(super) const GLANCE: Row = Row {
    title: "At a glance",
    panels: &[
        Panel {
            title: "Leaders",
            about: "Aggregators that hold the Lease. 1 is right; with 0 swimlet writes nothing, and Kubernetes' own detection alone is on.",
            kind: Kind::Stat(&[
                Bound(f64::NEG_INFINITY, Colour::Wrong),
                Bound(1.0, Colour::Right),
                Bound(2.0, Colour::Wrong),
            ]),
            unit: Unit::Count,
            width: 3,
            empty: "not scraped",
            queries: &[by(
                r#"sum(swimlet_aggregator_leader{cluster=~"$cluster"})"#,
                "leaders",
            )],
        },
        Panel {
            title: "Alerts firing",
            about: "Alerts of swimlet that fire now; each has a runbook in docs/operate/alerts.md.",
            kind: ANY_IS_WRONG,
            unit: Unit::Count,
            width: 3,
            empty: "no rules",
            queries: &[by(
                r#"count(ALERTS{alertname=~"Swimlet.+",alertstate="firing",cluster=~"$cluster"}) or vector(0)"#,
                "alerts",
            )],
        },
        Panel {
            title: "Judged dead",
            about: "Nodes whose verdict is one that is written: Unreachable, KubeletDown, ApiCutOff.",
            kind: NONE_IS_RIGHT,
            unit: Unit::Count,
            width: 3,
            empty: "no leader",
            queries: &[by(
                r#"sum(swimlet_nodes{cluster=~"$cluster",verdict=~"Unreachable|KubeletDown|ApiCutOff|HeartbeatSilent"} and on (cluster, instance) swimlet_aggregator_leader{cluster=~"$cluster"} == 1)"#,
                "nodes",
            )],
        },
        Panel {
            title: "Withheld",
            about: "Silent nodes that are not written on purpose: a brake, a hold, a pause, stale reads, a removal.",
            kind: NONE_IS_RIGHT,
            unit: Unit::Count,
            width: 3,
            empty: "no leader",
            queries: &[by(
                r#"sum(swimlet_nodes{cluster=~"$cluster",verdict="Withheld"} and on (cluster, instance) swimlet_aggregator_leader{cluster=~"$cluster"} == 1)"#,
                "nodes",
            )],
        },
        Panel {
            title: "Brakes on",
            about: "Brakes that hold writes back, on any aggregator. One that is on means that much of the cluster is silent, or the network is.",
            kind: ANY_IS_WRONG,
            unit: Unit::Count,
            width: 3,
            empty: "not scraped",
            queries: &[by(
                r#"sum(max by (cluster, brake) (swimlet_brake_engaged{cluster=~"$cluster"}))"#,
                "brakes",
            )],
        },
        Panel {
            title: "Taken back, 24 h",
            about: "Unknowns of swimlet that a kubelet took back before a peer reached it. At a reboot the kubelet may simply be quicker than the agent; where no peer reaches the node afterwards, it was a wrong write, and an alert fires.",
            kind: NONE_IS_RIGHT,
            unit: Unit::Count,
            width: 3,
            empty: "not scraped",
            queries: &[by(
                r#"ceil(sum(increase(swimlet_notices_total{cluster=~"$cluster",kind="taken_back"}[24h])))"#,
                "taken back",
            )],
        },
        Panel {
            title: "Written, 24 h",
            about: "Nodes that were set Ready=Unknown, and, in observe, that would have been.",
            kind: NEUTRAL,
            unit: Unit::Count,
            width: 3,
            empty: "not scraped",
            queries: &[by(
                r#"ceil(sum by (outcome) (increase(swimlet_condition_writes_total{cluster=~"$cluster",outcome=~"written|would_write"}[24h])))"#,
                "{{outcome}}",
            )],
        },
        Panel {
            title: "First certificate expires",
            about: "The soonest expiry of any member's certificate.",
            kind: NEUTRAL,
            unit: Unit::FromNow,
            width: 3,
            empty: "not scraped",
            queries: &[by(
                r#"1000 * min(swimlet_certificate_expiry_timestamp_seconds{cluster=~"$cluster"})"#,
                "expiry",
            )],
        },
        Panel {
            title: "Nodes that are not simply alive",
            about: "Nodes by verdict, as the leader has them. Withheld, MeshCutOff, AgentMissing, Left and Unverifiable are not written; Unmonitored never had an agent.",
            kind: Kind::Stacked,
            unit: Unit::Count,
            width: 12,
            empty: "no leader",
            queries: &[by(
                r#"sum by (verdict) (swimlet_nodes{cluster=~"$cluster",verdict!="Alive"} and on (cluster, instance) swimlet_aggregator_leader{cluster=~"$cluster"} == 1)"#,
                "{{verdict}}",
            )],
        },
        Panel {
            title: "Brakes",
            about: "1 while the brake holds writes back: minority (half or fewer seen alive), share (too many would bear our Unknown), graded (many fell at once), covered-by-none (the agents left).",
            kind: Kind::Lines,
            unit: Unit::YesNo,
            width: 6,
            empty: "not scraped",
            queries: &[by(
                r#"max by (brake) (swimlet_brake_engaged{cluster=~"$cluster"})"#,
                "{{brake}}",
            )],
        },
        Panel {
            title: "Who leads",
            about: "The aggregator that holds the Lease. It changes at a roll-out, and when a leader dies or sees too few nodes.",
            kind: Kind::Lines,
            unit: Unit::YesNo,
            width: 6,
            empty: "not scraped",
            queries: &[by(
                r#"swimlet_aggregator_leader{cluster=~"$cluster"}"#,
                "{{instance}}",
            )],
        },
    ],
};
