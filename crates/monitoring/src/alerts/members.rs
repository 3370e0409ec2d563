//! The health of members and of what they share.

use super::EAST;
use crate::alert::{Alert, Case, Firing, Severity};

pub(super) const VIEWS_DIFFER: Alert = Alert {
    name: "SwimletViewsDiffer",
    severity: Severity::Warning,
    holds: "10m",
    // A join or a death takes seconds to spread; a member that joins has few for a moment.
    expr: &[
        r#"max by (cluster) (swimlet_mesh_members{state="alive"})"#,
        r#"- min by (cluster) (swimlet_mesh_members{state="alive"})"#,
        r#"> clamp_min(0.02 * max by (cluster) (swimlet_mesh_members{state="alive"}), 2)"#,
    ],
    summary: "Members differ by {{ $value }} in how many they see alive",
    description: "The mesh is split, or news does not reach some of its members.",
    cases: &[
        Case {
            about: "the mesh is split in two",
            series: &[
                (
                    r#"swimlet_mesh_members{cluster="east",instance="n1",state="alive"}"#,
                    "100x4 60x40",
                ),
                (
                    r#"swimlet_mesh_members{cluster="east",instance="n2",state="alive"}"#,
                    "100x4 40x40",
                ),
            ],
            at: "15m",
            fires: Some(Firing {
                labels: EAST,
                summary: "Members differ by 20 in how many they see alive",
            }),
        },
        Case {
            about: "news is on its way; clusters differ in size",
            series: &[
                (
                    r#"swimlet_mesh_members{cluster="east",instance="n1",state="alive"}"#,
                    "100x44",
                ),
                (
                    r#"swimlet_mesh_members{cluster="east",instance="n2",state="alive"}"#,
                    "98x44",
                ),
                (
                    r#"swimlet_mesh_members{cluster="west",instance="n3",state="alive"}"#,
                    "5x44",
                ),
            ],
            at: "15m",
            fires: None,
        },
    ],
};

pub(super) const MEMBERS_STARVED: Alert = Alert {
    name: "SwimletMembersStarved",
    severity: Severity::Warning,
    holds: "10m",
    // Above 4 the judge does not count a member's word (verdict::constants::HEALTH_COUNTED_MAX).
    expr: &["count by (cluster) (swimlet_mesh_local_health > 4)"],
    summary: "{{ $value }} members are too sick for their word to count",
    description: "Their own probes fail though others' do not: starved of CPU, or on a lossy network. They accuse nobody, and are no witnesses.",
    cases: &[
        Case {
            about: "an agent gets no CPU",
            series: &[
                (
                    r#"swimlet_mesh_local_health{cluster="east",instance="n1"}"#,
                    "0x4 8x40",
                ),
                (
                    r#"swimlet_mesh_local_health{cluster="east",instance="n2"}"#,
                    "0x44",
                ),
            ],
            at: "15m",
            fires: Some(Firing {
                labels: EAST,
                summary: "1 members are too sick for their word to count",
            }),
        },
        Case {
            about: "slow, but counted",
            series: &[(
                r#"swimlet_mesh_local_health{cluster="east",instance="n1"}"#,
                "4x44",
            )],
            at: "15m",
            fires: None,
        },
    ],
};

pub(super) const CERTIFICATE_EXPIRED: Alert = Alert {
    name: "SwimletCertificateExpired",
    severity: Severity::Critical,
    holds: "",
    expr: &["count by (cluster) (swimlet_certificate_expiry_timestamp_seconds - time() <= 0)"],
    summary: "The certificates of {{ $value }} members have expired",
    description: "No peer takes a new link from them. Their open links stay, so the mesh thins out with each restart.",
    cases: &[
        Case {
            about: "one of two has expired",
            series: &[
                (
                    r#"swimlet_certificate_expiry_timestamp_seconds{cluster="east",instance="a"}"#,
                    "60x20",
                ),
                (
                    r#"swimlet_certificate_expiry_timestamp_seconds{cluster="east",instance="b"}"#,
                    "259200x20",
                ),
            ],
            at: "5m",
            fires: Some(Firing {
                labels: EAST,
                summary: "The certificates of 1 members have expired",
            }),
        },
        Case {
            about: "soon is not yet",
            series: &[(
                r#"swimlet_certificate_expiry_timestamp_seconds{cluster="east",instance="a"}"#,
                "600x20",
            )],
            at: "5m",
            fires: None,
        },
    ],
};

pub(super) const CERTIFICATE_EXPIRES_SOON: Alert = Alert {
    name: "SwimletCertificateExpiresSoon",
    severity: Severity::Warning,
    holds: "10m",
    // Renewal is due after a third of a certificate's life; a day is time to mend it by hand.
    expr: &[
        "count by (cluster) (swimlet_certificate_expiry_timestamp_seconds - time() < 24 * 3600)",
    ],
    summary: "The certificates of {{ $value }} members expire within a day",
    description: "They were not renewed. Changed files are taken up without a restart.",
    cases: &[
        Case {
            about: "two hours are left",
            series: &[(
                r#"swimlet_certificate_expiry_timestamp_seconds{cluster="east",instance="n1"}"#,
                "7200x60",
            )],
            at: "15m",
            fires: Some(Firing {
                labels: EAST,
                summary: "The certificates of 1 members expire within a day",
            }),
        },
        Case {
            about: "renewed in time",
            series: &[(
                r#"swimlet_certificate_expiry_timestamp_seconds{cluster="east",instance="n1"}"#,
                "7200x10 259200x50",
            )],
            at: "15m",
            fires: None,
        },
    ],
};

pub(super) const RESTART_LOOP: Alert = Alert {
    name: "SwimletRestartLoop",
    severity: Severity::Warning,
    holds: "",
    expr: &["count by (cluster) (changes(swimlet_start_time_seconds[30m]) >= 3)"],
    summary: "{{ $value }} members restart again and again",
    description: "Each of them started at least three times within half an hour.",
    cases: &[
        Case {
            about: "an agent is OOM-killed every few minutes",
            series: &[
                (
                    r#"swimlet_start_time_seconds{cluster="east",instance="n1"}"#,
                    "0x8 240x8 480x8 720x30",
                ),
                (
                    r#"swimlet_start_time_seconds{cluster="east",instance="n2"}"#,
                    "0x60",
                ),
            ],
            at: "20m",
            fires: Some(Firing {
                labels: EAST,
                summary: "1 members restart again and again",
            }),
        },
        Case {
            about: "a roll-out",
            series: &[(
                r#"swimlet_start_time_seconds{cluster="east",instance="n1"}"#,
                "0x20 600x40",
            )],
            at: "20m",
            fires: None,
        },
    ],
};

pub(super) const QUEUE_OVERFLOW: Alert = Alert {
    name: "SwimletQueueOverflow",
    severity: Severity::Info,
    holds: "15m",
    expr: &["sum by (cluster, queue) (increase(swimlet_queue_dropped_total[10m])) > 0"],
    summary: "The queue {{ $labels.queue }} keeps overflowing",
    description: "A bounded queue drops what exceeds it, as it should; that it does so for a quarter of an hour says that the member is overloaded.",
    cases: &[
        Case {
            about: "one drop a scrape",
            series: &[(
                r#"swimlet_queue_dropped_total{cluster="east",instance="a",queue="events"}"#,
                "0+1x80",
            )],
            at: "30m",
            fires: Some(Firing {
                labels: &[("cluster", "east"), ("queue", "events")],
                summary: "The queue events keeps overflowing",
            }),
        },
        Case {
            about: "a burst after a mass failure",
            series: &[(
                r#"swimlet_queue_dropped_total{cluster="east",instance="a",queue="events"}"#,
                "0x10 500x70",
            )],
            at: "30m",
            fires: None,
        },
    ],
};

pub(super) const VERSION_SKEW: Alert = Alert {
    name: "SwimletVersionSkew",
    severity: Severity::Info,
    // Longer than a roll-out of 5 % of the nodes at a time.
    holds: "6h",
    expr: &["count by (cluster) (count by (cluster, version) (swimlet_build_info)) > 1"],
    summary: "{{ $value }} versions of swimlet run side by side",
    description: "A roll-out has stopped on its way. Versions next to each other work together; do not leave it so.",
    cases: &[
        Case {
            about: "a roll-out is stuck",
            series: &[
                (
                    r#"swimlet_build_info{cluster="east",instance="n1",role="agent",version="0.1.0"}"#,
                    "1x1000",
                ),
                (
                    r#"swimlet_build_info{cluster="east",instance="n2",role="agent",version="0.2.0"}"#,
                    "1x1000",
                ),
            ],
            at: "7h",
            fires: Some(Firing {
                labels: EAST,
                summary: "2 versions of swimlet run side by side",
            }),
        },
        Case {
            about: "a roll-out of two hours",
            series: &[
                (
                    r#"swimlet_build_info{cluster="east",instance="n1",role="agent",version="0.1.0"}"#,
                    "1x240 _x760",
                ),
                (
                    r#"swimlet_build_info{cluster="east",instance="n2",role="agent",version="0.2.0"}"#,
                    "1x1000",
                ),
            ],
            at: "7h",
            fires: None,
        },
    ],
};
