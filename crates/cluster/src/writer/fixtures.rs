//! A Node as it is seen, and a decision about it.

use std::time::Duration;

use swimlet_protocol::{MemberKey, Moment};
use swimlet_verdict::table::{Agent, Heartbeats, Port};
use swimlet_verdict::{
    Decision, Evidence, NodeRef, NodeSeen, ReadyCondition, ReadyStatus, Rule, Verdict,
};

pub(super) fn ready(status: ReadyStatus) -> ReadyCondition {
    ReadyCondition {
        status,
        reason: "KubeletReady".to_owned(),
        heartbeat: Some(1),
        transition: Some(1),
        ours: false,
    }
}

pub(super) fn fresh() -> NodeSeen {
    NodeSeen {
        node: NodeRef {
            name: "a".parse().unwrap(),
            uid: "u".into(),
        },
        key: MemberKey(1),
        zone: "z".parse().unwrap(),
        addresses: Vec::new(),
        kubelet_port: 10_250,
        ready: Some(ready(ReadyStatus::True)),
        hold: false,
        deleting: false,
        lifecycle: Vec::new(),
        agentless: false,
    }
}

pub(super) fn decision() -> Decision {
    Decision {
        node: fresh().node,
        episode: 1,
        verdict: Verdict::Unreachable,
        evidence: Evidence {
            began: Moment::ORIGIN,
            stood: Duration::from_secs(4),
            ready: fresh().ready,
            agent: Agent::Silent,
            port: Port::Silent,
            heartbeats: Heartbeats::Silent,
            heartbeats_silent: Duration::from_secs(4),
            witnesses: Vec::new(),
            need: 2,
            rounds: 2,
            weakness: None,
            lifecycle: Vec::new(),
        },
        rule: Rule::NoPacketFromHost,
    }
}
