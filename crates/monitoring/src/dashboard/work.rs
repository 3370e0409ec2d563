//! What swimlet finds, what it writes, and what that costs the API server.

use super::{Kind, Panel, Row, Unit, by};

pub(super) const DETECTION: Row = Row {
    title: "Detection",
    panels: &[
        Panel {
            title: "Decisions",
            about: "Changes of verdict. A cluster at rest has none.",
            kind: Kind::Stacked,
            unit: Unit::PerSecond,
            width: 8,
            empty: "not scraped",
            queries: &[by(
                r#"sum by (verdict) (rate(swimlet_decisions_total{cluster=~"$cluster"}[$__rate_interval]))"#,
                "{{verdict}}",
            )],
        },
        Panel {
            title: "From silence to decision",
            about: "From the earliest unanswered probe to the decision, over the time shown. Unreachable takes its profile's interval and more (default 4 s), KubeletDown and ApiCutOff 50 s and more.",
            kind: Kind::Ranked,
            unit: Unit::Seconds,
            width: 8,
            empty: "nothing was decided in this time",
            queries: &[
                by(
                    r#"histogram_quantile(0.5, sum by (le, verdict) (increase(swimlet_detection_seconds_bucket{cluster=~"$cluster"}[$__range]))) >= 0"#,
                    "p50 {{verdict}}",
                ),
                by(
                    r#"histogram_quantile(0.99, sum by (le, verdict) (increase(swimlet_detection_seconds_bucket{cluster=~"$cluster"}[$__range]))) >= 0"#,
                    "p99 {{verdict}}",
                ),
            ],
        },
        Panel {
            title: "What became of decisions to write",
            about: "written; would_write (observe); superseded (a fresh read had overtaken it); conflict (the Node had changed); gone; failed (decided anew).",
            kind: Kind::Stacked,
            unit: Unit::PerSecond,
            width: 8,
            empty: "not scraped",
            queries: &[by(
                r#"sum by (outcome) (rate(swimlet_condition_writes_total{cluster=~"$cluster"}[$__rate_interval]))"#,
                "{{outcome}}",
            )],
        },
        Panel {
            title: "Notices",
            about: "What the judge wants a person to know; the leader's log has the node's name.",
            kind: Kind::Stacked,
            unit: Unit::PerSecond,
            width: 12,
            empty: "not scraped",
            queries: &[by(
                r#"sum by (kind) (rate(swimlet_notices_total{cluster=~"$cluster"}[$__rate_interval]))"#,
                "{{kind}}",
            )],
        },
        Panel {
            title: "Pods marked NotReady",
            about: "Pods of written nodes; they leave their Services by it.",
            kind: Kind::Lines,
            unit: Unit::PerSecond,
            width: 12,
            empty: "not scraped",
            queries: &[by(
                r#"sum(rate(swimlet_pods_marked_total{cluster=~"$cluster"}[$__rate_interval]))"#,
                "pods",
            )],
        },
    ],
};

pub(super) const API: Row = Row {
    title: "Kubernetes API",
    panels: &[
        Panel {
            title: "Requests of the aggregators",
            about: "The leader renews its Lease every 2 s; the rest is reads and writes of silent nodes. Agents ask nothing of the API server.",
            kind: Kind::Lines,
            unit: Unit::PerSecond,
            width: 8,
            empty: "not scraped",
            queries: &[by(
                r#"rate(swimlet_api_requests_total{cluster=~"$cluster"}[$__rate_interval])"#,
                "{{instance}}",
            )],
        },
        Panel {
            title: "Failed requests",
            about: "Throttled, met an unavailable server, or stayed unanswered.",
            kind: Kind::Stacked,
            unit: Unit::PerSecond,
            width: 8,
            empty: "not scraped",
            queries: &[by(
                r#"sum by (kind) (rate(swimlet_api_failures_total{cluster=~"$cluster"}[$__rate_interval]))"#,
                "{{kind}}",
            )],
        },
        Panel {
            title: "Dropped at the edge",
            about: "Items that a full queue of an aggregator dropped: decisions are made anew, Events are lost.",
            kind: Kind::Stacked,
            unit: Unit::PerSecond,
            width: 8,
            empty: "nothing was ever dropped",
            queries: &[by(
                r#"sum by (queue) (rate(swimlet_queue_dropped_total{cluster=~"$cluster",queue=~"decisions|events|nodes|lease_reads"}[$__rate_interval]))"#,
                "{{queue}}",
            )],
        },
    ],
};
