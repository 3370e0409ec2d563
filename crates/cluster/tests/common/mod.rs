//! What the tests of the edge share: an edge that runs, and decisions to feed it.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::collections::BTreeMap;
use std::time::Duration;

use kube::Config;
use serde_json::Value;
use swimlet_cluster::election::state::Timing;
use swimlet_cluster::{Clients, Edge, EdgeConfig, EdgeError, EdgeHandle, ElectionConfig, Mode};
use swimlet_protocol::{MemberKey, Moment};
use swimlet_verdict::table::{Agent, Heartbeats, Port};
use swimlet_verdict::{
    Decision, Evidence, Input, NodeRef, NodeSeen, ReadyCondition, Rule, Verdict, Witness,
    WriteOutcome,
};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Far beyond what anything here takes, so that only a lost event runs into it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Renewals in quick succession, and a lease that a busy machine does not lose by accident.
pub(crate) const STEADY: Timing = Timing {
    lease: Duration::from_secs(60),
    renew_deadline: Duration::from_secs(50),
    retry: Duration::from_millis(200),
    call: Duration::from_secs(10),
};

/// The shortest durations that a Lease can express, for tests about the end of leadership.
pub(crate) const QUICK: Timing = Timing {
    lease: Duration::from_secs(2),
    renew_deadline: Duration::from_millis(1400),
    retry: Duration::from_millis(300),
    call: Duration::from_millis(500),
};

/// An edge that runs until it is dropped, or stopped.
pub(crate) struct Running {
    pub(crate) handle: EdgeHandle,
    pub(crate) inputs: mpsc::Receiver<Input>,
    pub(crate) stop: CancellationToken,
    tasks: JoinSet<Result<(), EdgeError>>,
    nodes: BTreeMap<String, NodeSeen>,
}

pub(crate) fn config(identity: &str, mode: Mode) -> EdgeConfig {
    EdgeConfig {
        cluster: "test".parse().unwrap(),
        mode,
        election: ElectionConfig {
            namespace: "swimlet-system".to_owned(),
            lease: "swimlet-aggregator".to_owned(),
            identity: identity.to_owned(),
            timing: STEADY,
        },
        seed: 7,
    }
}

impl Running {
    pub(crate) fn start(kube: Config, config: EdgeConfig) -> Self {
        Self::with_clients(Clients::from_config(kube).unwrap(), config)
    }

    pub(crate) fn with_clients(clients: Clients, config: EdgeConfig) -> Self {
        let (edge, handle, inputs) = Edge::new(clients, config);
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        tasks.spawn(edge.run(stop.clone()));
        Self {
            handle,
            inputs,
            stop,
            tasks,
            nodes: BTreeMap::new(),
        }
    }

    /// The next input for which `pick` yields something; the others are passed over.
    pub(crate) async fn next<T>(
        &mut self,
        what: &str,
        mut pick: impl FnMut(Input) -> Option<T>,
    ) -> T {
        let found = async {
            loop {
                let input = self.inputs.recv().await.expect("the edge runs");
                if let Input::Node(seen) = &input {
                    let name = seen.node.name.to_string();
                    self.nodes.insert(name, seen.clone());
                }
                if let Some(found) = pick(input) {
                    return found;
                }
            }
        };
        tokio::time::timeout(PATIENCE, found)
            .await
            .unwrap_or_else(|_| panic!("waited in vain for {what}"))
    }

    /// Waits for leadership. Not for its input, which may have been passed over already.
    pub(crate) async fn leads(&self) {
        let handle = &self.handle;
        until("it leads", async || handle.leadership().leads()).await;
    }

    pub(crate) async fn node(&mut self, name: &str) -> NodeSeen {
        self.next("the node", |input| match input {
            Input::Node(seen) if seen.node.name.as_str() == name => Some(seen),
            _ => None,
        })
        .await
    }

    /// The node as it was last seen while waiting for anything.
    pub(crate) fn last_seen(&self, name: &str) -> &NodeSeen {
        &self.nodes[name]
    }

    pub(crate) async fn outcome(&mut self) -> WriteOutcome {
        self.next("an outcome", |input| match input {
            Input::Written { outcome, .. } => Some(outcome),
            _ => None,
        })
        .await
    }

    /// Has a decision written, and decides anew as the judge does: on a machine so busy that this
    /// process hardly runs, the writer takes that for a pause and gives decisions back.
    pub(crate) async fn write(&mut self, decision: &Decision) {
        loop {
            self.handle.decide(decision.clone()).unwrap();
            match self.outcome().await {
                WriteOutcome::Written => return,
                WriteOutcome::Superseded | WriteOutcome::Failed => {}
                other => panic!("not written: {other:?}"),
            }
        }
    }

    /// Stops as on the first signal, and returns how it ended.
    pub(crate) async fn stopped(mut self) -> Result<(), EdgeError> {
        self.stop.cancel();
        self.inputs.close();
        self.tasks.join_next().await.unwrap().unwrap()
    }
}

/// A decision about a node as it was seen.
pub(crate) fn decision(seen: &NodeSeen) -> Decision {
    unreachable(seen.node.clone(), seen.ready.clone())
}

pub(crate) fn unreachable(node: NodeRef, ready: Option<ReadyCondition>) -> Decision {
    Decision {
        node,
        episode: 1,
        verdict: Verdict::Unreachable,
        evidence: Evidence {
            began: Moment::ORIGIN,
            stood: Duration::from_millis(4200),
            ready,
            agent: Agent::Silent,
            port: Port::Silent,
            heartbeats: Heartbeats::Silent,
            heartbeats_silent: Duration::from_secs(4),
            witnesses: ["b", "c"].map(witness).to_vec(),
            need: 2,
            rounds: 2,
            weakness: None,
            lifecycle: Vec::new(),
        },
        rule: Rule::NoPacketFromHost,
    }
}

fn witness(name: &str) -> Witness {
    Witness {
        zone: "z1".parse().unwrap(),
        host: Some(name.parse().unwrap()),
        member: MemberKey(1),
        aggregator: false,
    }
}

/// The condition of this type.
pub(crate) fn condition<'a>(object: &'a Value, kind: &str) -> &'a Value {
    let conditions = object["status"]["conditions"].as_array().unwrap();
    conditions
        .iter()
        .find(|condition| condition["type"] == kind)
        .unwrap()
}

/// Asks until `check` is content.
pub(crate) async fn until(what: &str, mut check: impl AsyncFnMut() -> bool) {
    let waited = async {
        while !check().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waited)
        .await
        .unwrap_or_else(|_| panic!("waited in vain until {what}"));
}
