//! The mesh and its members.

use super::{Kind, Panel, Row, Unit, by};

pub(super) const MESH: Row = Row {
    title: "Mesh health",
    panels: &[
        Panel {
            title: "Members, as the leader sees them",
            about: "Agents and aggregators by state, the leader itself apart.",
            kind: Kind::Stacked,
            unit: Unit::Count,
            width: 8,
            empty: "no leader",
            queries: &[by(
                r#"sum by (state) (swimlet_mesh_members{cluster=~"$cluster"} and on (cluster, instance) swimlet_aggregator_leader{cluster=~"$cluster"} == 1)"#,
                "{{state}}",
            )],
        },
        Panel {
            title: "Difference of views",
            about: "How far members differ in how many they see alive. 0 but for seconds after a change; more means that the mesh is split or slow.",
            kind: Kind::Lines,
            unit: Unit::Count,
            width: 8,
            empty: "not scraped",
            queries: &[by(
                r#"max by (cluster) (swimlet_mesh_members{cluster=~"$cluster",state="alive"}) - min by (cluster) (swimlet_mesh_members{cluster=~"$cluster",state="alive"})"#,
                "difference {{cluster}}",
            )],
        },
        Panel {
            title: "Missed probes",
            about: "The share of direct probes that stayed unanswered.",
            kind: Kind::Lines,
            unit: Unit::Share,
            width: 8,
            empty: "not scraped",
            queries: &[by(
                r#"sum(rate(swimlet_mesh_probes_total{cluster=~"$cluster",result="missed"}[$__rate_interval])) / sum(rate(swimlet_mesh_probes_total{cluster=~"$cluster"}[$__rate_interval]))"#,
                "missed",
            )],
        },
        Panel {
            title: "Local health",
            about: "Lifeguard's multiplier: 0 is healthy, above 4 a member's word does not count, 8 is sick.",
            kind: Kind::Lines,
            unit: Unit::Count,
            width: 8,
            empty: "not scraped",
            queries: &[
                by(
                    r#"max(swimlet_mesh_local_health{cluster=~"$cluster"})"#,
                    "worst",
                ),
                by(
                    r#"avg(swimlet_mesh_local_health{cluster=~"$cluster"})"#,
                    "mean",
                ),
            ],
        },
        Panel {
            title: "Links of a member",
            about: "Open QUIC links. Each member is watched by ten others and watches about ten; in a mesh of up to 11 all know all.",
            kind: Kind::Lines,
            unit: Unit::Count,
            width: 8,
            empty: "not scraped",
            queries: &[
                by(r#"max(swimlet_mesh_links{cluster=~"$cluster"})"#, "most"),
                by(r#"avg(swimlet_mesh_links{cluster=~"$cluster"})"#, "mean"),
                by(r#"min(swimlet_mesh_links{cluster=~"$cluster"})"#, "fewest"),
            ],
        },
        Panel {
            title: "Handshakes and dials",
            about: "A mesh at rest has next to none. Failed handshakes are refused certificates, foreign clusters, or a clock that is off.",
            kind: Kind::Lines,
            unit: Unit::PerSecond,
            width: 8,
            empty: "not scraped",
            queries: &[by(
                r#"sum by (what) (rate(swimlet_transport_total{cluster=~"$cluster",what=~"handshakes_accepted|handshakes_refused|handshakes_stalled|handshakes_failed|dials|dials_failed"}[$__rate_interval]))"#,
                "{{what}}",
            )],
        },
        Panel {
            title: "Frames",
            about: "Frames of all members together.",
            kind: Kind::Lines,
            unit: Unit::PerSecond,
            width: 8,
            empty: "not scraped",
            queries: &[by(
                r#"sum by (what) (rate(swimlet_transport_total{cluster=~"$cluster",what=~"frames_sent|frames_received"}[$__rate_interval]))"#,
                "{{what}}",
            )],
        },
        Panel {
            title: "Dropped by the transport",
            about: "Frames that were not sent or not taken, and packets that are none of ours.",
            kind: Kind::Stacked,
            unit: Unit::PerSecond,
            width: 8,
            empty: "not scraped",
            queries: &[by(
                r#"sum by (what) (rate(swimlet_transport_total{cluster=~"$cluster",what=~"frames_unsent_no_link|frames_unsent_full|frames_dropped_queue_full|frames_malformed|frames_other_version|udp_garbage|udp_oversized|events_dropped_queue_full"}[$__rate_interval]))"#,
                "{{what}}",
            )],
        },
        Panel {
            title: "Dropped by the mesh",
            about: "Frames, news and claims by reason. `stale` is news that tells nothing new: it grows in a busy mesh and is left out.",
            kind: Kind::Stacked,
            unit: Unit::PerSecond,
            width: 8,
            empty: "not scraped",
            queries: &[by(
                r#"sum by (reason) (rate(swimlet_mesh_dropped_total{cluster=~"$cluster",reason!="stale"}[$__rate_interval]))"#,
                "{{reason}}",
            )],
        },
    ],
};

pub(super) const AGENTS: Row = Row {
    title: "Agents",
    panels: &[
        Panel {
            title: "Members by role and version",
            about: "Processes that Prometheus scrapes. Two versions for longer than a roll-out: it is stuck.",
            kind: Kind::Stacked,
            unit: Unit::Count,
            width: 8,
            empty: "not scraped",
            queries: &[by(
                r#"count by (role, version) (swimlet_build_info{cluster=~"$cluster"})"#,
                "{{role}} {{version}}",
            )],
        },
        Panel {
            title: "Agents' own checks that pass",
            about: "The share of agents whose check of their node passes. A check that is not configured, or a kubelet without :10248, counts as not passing.",
            kind: Kind::Lines,
            unit: Unit::Share,
            width: 8,
            empty: "no agent is scraped",
            queries: &[by(
                r#"avg by (check) (swimlet_agent_check_passing{cluster=~"$cluster"})"#,
                "{{check}}",
            )],
        },
        Panel {
            title: "Starts",
            about: "Members that started anew within the last 10 minutes.",
            kind: Kind::Lines,
            unit: Unit::Count,
            width: 8,
            empty: "not scraped",
            queries: &[by(
                r#"sum(changes(swimlet_start_time_seconds{cluster=~"$cluster"}[10m]))"#,
                "starts",
            )],
        },
        Panel {
            title: "Kubelet ports reached",
            about: "Ports that a member has reached within 25 minutes: only there does its no count. Near 0 on all agents: port 10250 is closed between nodes, and detection waits for heartbeats.",
            kind: Kind::Lines,
            unit: Unit::Count,
            width: 8,
            empty: "not scraped",
            queries: &[
                by(
                    r#"max(swimlet_baseline_paths{cluster=~"$cluster"})"#,
                    "most",
                ),
                by(
                    r#"avg(swimlet_baseline_paths{cluster=~"$cluster"})"#,
                    "mean",
                ),
                by(
                    r#"min(swimlet_baseline_paths{cluster=~"$cluster"})"#,
                    "fewest",
                ),
            ],
        },
        Panel {
            title: "Sickest members",
            about: "Local health, worst first. One sick member is a matter of its host; many are one of the network.",
            kind: Kind::Ranked,
            unit: Unit::Count,
            width: 8,
            empty: "not scraped",
            queries: &[by(
                r#"topk(10, swimlet_mesh_local_health{cluster=~"$cluster"})"#,
                "{{instance}}",
            )],
        },
        Panel {
            title: "Certificates that expire first",
            about: "Seconds until the certificate expires, for the ten that expire first.",
            kind: Kind::Ranked,
            unit: Unit::Seconds,
            width: 8,
            empty: "not scraped",
            queries: &[by(
                r#"bottomk(10, swimlet_certificate_expiry_timestamp_seconds{cluster=~"$cluster"} - time())"#,
                "{{instance}}",
            )],
        },
    ],
};
