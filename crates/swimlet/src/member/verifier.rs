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
use super::handle::{Handle, Probed};

/// How long a kubelet's port has. Below the second between two rounds, so that the
/// answers of one are there before the next is asked.
const PORT_TIMEOUT: Duration = Duration::from_millis(800);
/// How long an agent has. Without a link the mesh dials it first, and gives up on
/// that by itself after 1.5 s; an answer is taken up to 5 s after its round was asked.
const AGENT_TIMEOUT: Duration = Duration::from_millis(2_500);
/// Most port checks for verification at once: the requests of several aggregators in a
/// mass failure. One that waits for a silent port is one socket.
const CHECKS_MAX: usize = 512;
/// Most port checks for the baseline at once, beside those.
const BASELINE_CHECKS_MAX: usize = 32;
/// Subjects of one request that are tried at once: all.
const TRIES_MAX: usize = swimlet_protocol::frame::SUBJECTS_MAX;
/// How often an observer checks one of its subjects' ports, once all were tried; more
/// often if there are so many that a turn would take longer than [`BASELINE_TURN`].
const BASELINE_INTERVAL: Duration = Duration::from_secs(60);
/// All ports are tried within this time: well within the baseline's window, so that one
/// failed try does not end it.
const BASELINE_TURN: Duration = Duration::from_secs(600);
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
    baseline_checks: Arc<Semaphore>,
}

impl Verifier {
    /// A verifier that probes through `member`.
    pub(crate) fn new(member: Handle) -> Self {
        Self {
            member,
            baseline: Arc::default(),
            checks: Arc::new(Semaphore::new(CHECKS_MAX)),
            baseline_checks: Arc::new(Semaphore::new(BASELINE_CHECKS_MAX)),
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
            .buffer_unordered(TRIES_MAX)
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
    pub(crate) async fn check_baseline(&self, port: SocketAddr, node: &NodeName) -> PortAnswer {
        // The semaphore lives as long as this verifier and is never closed.
        let _permit = self.baseline_checks.acquire().await;
        self.look(port, Some(node), PORT_TIMEOUT).await
    }

    /// Checks one port for a verification; not at all if too many checks are under way,
    /// because an answer that comes too late is none.
    async fn check_now(&self, port: SocketAddr, node: Option<&NodeName>) -> PortAnswer {
        let began = Instant::now();
        match timeout(PORT_TIMEOUT, self.checks.acquire()).await {
            Ok(_permit) => {
                let left = PORT_TIMEOUT.saturating_sub(began.elapsed());
                if left < PORT_TIMEOUT / 2 {
                    return PortAnswer::Untried;
                }
                self.look(port, node, left).await
            }
            Err(_) => PortAnswer::Untried,
        }
    }

    async fn look(&self, port: SocketAddr, node: Option<&NodeName>, limit: Duration) -> PortAnswer {
        let answer = check::kubelet_port(port, node, limit).await;
        self.lock().note(self.member.clock().now(), port, answer);
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
            metrics::gauge!(catalogue::PATHS).set(self.paths() as f64);
            let ports = ports_of(self.member.subjects().await);
            tried.retain(|port, _| ports.iter().any(|(p, _)| p == port));
            let turns = u32::try_from(ports.len().max(1)).unwrap_or(u32::MAX);
            let interval = BASELINE_INTERVAL.min(BASELINE_TURN / turns);
            let resting = tried.values().any(|at| at.elapsed() < interval);
            let untried = ports.iter().find(|(port, _)| !tried.contains_key(port));
            let oldest = || ports.iter().min_by_key(|(port, _)| tried.get(port));
            let due = untried.or_else(|| if resting { None } else { oldest() });
            if let Some((port, node)) = due {
                let answer = self.check_baseline(*port, node).await;
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
            self.check_now(kubelet, name.as_ref())
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
        let probed = timeout(AGENT_TIMEOUT, self.member.probe(subject)).await;
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
