//! Active verification: trying a node's agent and its kubelet port, now.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use futures::stream;
use swimlet_protocol::frame::{
    AgentAnswer, Answer, PortAnswer, ProbeOutcome, Verified, Verify, VerifySubject,
};
use swimlet_protocol::{Bounded, Frame, MemberKey, MemberRecord, NodeName, Role};
use swimlet_telemetry::catalogue;
use swimlet_transport::check;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};
use tracing::debug;

use super::baseline::{self, Baseline};
use super::driver::{Handle, Probed};

/// How long a subject has for an answer of either kind. Below the second between
/// two rounds, so that the answers of one are there before the next is asked.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(800);
/// Most port checks at once: one full request, and the baseline beside it.
const CHECKS_MAX: usize = 64;
/// How often an observer checks one of its subjects' ports, once all were tried.
const BASELINE_INTERVAL: Duration = Duration::from_secs(60);
/// The same while a subject's port was not tried yet: ten subjects within five
/// seconds of a start. A kubelet meets ten such checks, once.
const BASELINE_START_INTERVAL: Duration = Duration::from_millis(500);

/// Tries nodes on request, and keeps the baseline by which its "no" counts.
/// Cheap to clone.
#[derive(Clone)]
pub(crate) struct Verifier {
    member: Handle,
    baseline: Arc<Mutex<Baseline>>,
    checks: Arc<Semaphore>,
}

impl Verifier {
    /// A verifier that probes through `member`.
    pub(crate) fn new(member: Handle) -> Self {
        Self {
            member,
            baseline: Arc::default(),
            checks: Arc::new(Semaphore::new(CHECKS_MAX)),
        }
    }

    /// Tries every subject of the request at once; returns when all are answered
    /// or their time is over.
    pub(crate) async fn verify(&self, request: Verify) -> Verified {
        let subjects = request.subjects.into_vec();
        let tries = subjects
            .into_iter()
            .enumerate()
            .map(|(index, subject)| self.try_subject(index, subject));
        let answers: Vec<_> = stream::iter(tries)
            .buffer_unordered(CHECKS_MAX)
            .collect()
            .await;
        Verified {
            round: request.round,
            health: self.member.health(),
            answers: Bounded::fill(&mut answers.into_iter()),
        }
    }

    /// Tries every subject and sends the answers to the aggregator that asked.
    pub(crate) async fn answer(&self, by: MemberKey, request: Verify) {
        let answers = self.verify(request).await;
        self.member.send(by, Frame::Verified(answers)).await;
    }

    /// Checks one port for the baseline.
    pub(crate) async fn check_port(&self, port: SocketAddr, node: Option<&NodeName>) -> PortAnswer {
        // The semaphore lives as long as this verifier and is never closed.
        let _permit = self.checks.acquire().await;
        let answer = check::kubelet_port(port, node, ANSWER_TIMEOUT).await;
        let now = self.member.clock().now();
        let mut baseline = self.lock();
        baseline.note(now, port, answer);
        metrics::gauge!(catalogue::PATHS).set(baseline.count(now) as f64);
        answer
    }

    /// How many ports were reached within the baseline window.
    pub(crate) fn paths(&self) -> usize {
        self.lock().count(self.member.clock().now())
    }

    /// Keeps the baseline of an observer: one subject's port a minute, and each new
    /// subject's soon. Never returns.
    pub(crate) async fn keep_baseline(self) {
        let mut tried: BTreeMap<SocketAddr, Instant> = BTreeMap::new();
        loop {
            sleep(BASELINE_START_INTERVAL).await;
            let ports = ports_of(self.member.subjects().await);
            tried.retain(|port, _| ports.iter().any(|(p, _)| p == port));
            let resting = tried.values().any(|at| at.elapsed() < BASELINE_INTERVAL);
            let untried = ports.iter().find(|(port, _)| !tried.contains_key(port));
            let oldest = || ports.iter().min_by_key(|(port, _)| tried.get(port));
            let due = untried.or_else(|| if resting { None } else { oldest() });
            if let Some((port, node)) = due {
                let answer = self.check_port(*port, Some(node)).await;
                debug!(%port, %node, ?answer, "checked a subject's kubelet port");
                tried.insert(*port, Instant::now());
            }
        }
    }

    async fn try_subject(&self, index: usize, subject: VerifySubject) -> Answer {
        let VerifySubject { subject, kubelet } = subject;
        let port_baseline = self.lock().holds(self.member.clock().now(), kubelet);
        let name = self.member.name_of(subject).await;
        let (agent, port) = tokio::join!(
            self.try_agent(subject),
            self.check_port(kubelet, name.as_ref())
        );
        let (agent, agent_baseline) = agent;
        Answer {
            // A request holds fewer subjects than a byte counts.
            index: u8::try_from(index).unwrap_or(u8::MAX),
            subject,
            agent,
            agent_baseline,
            port,
            port_baseline,
        }
    }

    async fn try_agent(&self, subject: MemberKey) -> (AgentAnswer, bool) {
        let probed = timeout(ANSWER_TIMEOUT, self.member.probe(subject)).await;
        let now = self.member.clock().now();
        let baseline = |probed: &Probed| {
            probed
                .contact_before
                .is_some_and(|at| now.since(at) <= baseline::WINDOW)
        };
        match probed {
            Ok(Some(probed)) => match probed.outcome {
                ProbeOutcome::Reached => (AgentAnswer::Answers, true),
                ProbeOutcome::NotReached => (AgentAnswer::Silent, baseline(&probed)),
                ProbeOutcome::NoStatement => (AgentAnswer::Untried, false),
            },
            // Slower than its own timeouts allow: this member is the one that is sick.
            Ok(None) | Err(_) => (AgentAnswer::Untried, false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Baseline> {
        self.baseline.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where the kubelets of these members serve, with their nodes' names.
fn ports_of(records: Vec<MemberRecord>) -> Vec<(SocketAddr, NodeName)> {
    let agents = records
        .into_iter()
        .filter(|r| r.role == Role::Agent && r.kubelet_port != 0);
    agents
        .flat_map(|record| {
            let mut hosts: Vec<_> = record.addresses.iter().map(SocketAddr::ip).collect();
            hosts.dedup();
            let port = |ip| {
                (
                    SocketAddr::new(ip, record.kubelet_port),
                    record.name.clone(),
                )
            };
            hosts.into_iter().map(port).collect::<Vec<_>>()
        })
        .collect()
}
