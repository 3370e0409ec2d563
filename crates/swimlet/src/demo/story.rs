//! What happens in the demo, in order: the mesh forms, nodes die, the cluster
//! learns of it, they come back.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{anyhow, bail};
use kube::Client;
use serde_json::json;
use swimlet_mesh::Event as MeshEvent;
use swimlet_protocol::MemberKey;
use swimlet_protocol::frame::Finding;
use swimlet_verdict::{Profile, Verdict};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::Options;
use super::cluster::DemoCluster;
use super::observer::{self, Picture};
use super::teller::{Teller, Tone, millis};
use crate::aggregator::Aggregator;
use crate::follow::{Follower, Noticed, What};
use crate::process::Shutdown;

/// Events of all members waiting to be told; a form-up of 100 nodes makes some
/// thousands, and what is missed is only missed in the story.
const NOTICED_MAX: usize = 65_536;
/// How often the API server is asked.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// For the mesh to form, a leader to be there, and paths to be known: this, and some time
/// for each node, because all of them share this process.
const FORM_TIMEOUT: Duration = Duration::from_secs(40);
const FORM_TIMEOUT_PER_NODE: Duration = Duration::from_millis(500);
/// For the dead to be written and their pods marked.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// For the kubelets to be seen again.
const RETURN_TIMEOUT: Duration = Duration::from_secs(20);
/// Distinct accusers are named up to here.
const ACCUSERS_TOLD: usize = 3;

/// Runs the demo; fails unless each killed node, and no other, was written.
pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    let mut shutdown = Shutdown::listen()?;
    let (sender, noticed) = mpsc::channel(NOTICED_MAX);
    let teller = Teller::new(options.json);
    let began = Instant::now();
    let starting = DemoCluster::start(options.nodes, Follower::new(sender));
    let cluster = tokio::select! {
        cluster = starting => cluster?,
        signal = shutdown.signalled() => bail!("ended by {signal}"),
    };
    let client = cluster.standin.client()?;
    let mut story = Story {
        options,
        teller,
        began,
        client,
        noticed,
        told: Told::default(),
        names: cluster.names.clone(),
    };
    let told = tokio::select! {
        told = story.tell(&cluster) => told,
        signal = shutdown.signalled() => {
            teller.end();
            Err(anyhow!("ended by {signal}"))
        }
    };
    cluster.stop().await;
    told
}

struct Story {
    options: Options,
    teller: Teller,
    began: Instant,
    client: Client,
    noticed: mpsc::Receiver<Noticed>,
    told: Told,
    names: BTreeMap<MemberKey, String>,
}

/// What has been told already, so that each thing is told once.
#[derive(Default)]
struct Told {
    /// The nodes that were killed, and when.
    killed: BTreeSet<MemberKey>,
    killed_at: Option<Instant>,
    missed: BTreeSet<MemberKey>,
    accusers: BTreeMap<MemberKey, BTreeSet<MemberKey>>,
    verified: BTreeMap<MemberKey, u32>,
    decided: BTreeSet<MemberKey>,
    leaders: BTreeSet<MemberKey>,
    led_since: Option<Instant>,
}

/// Times since the kill.
#[derive(Default)]
struct Times {
    unknown: BTreeMap<String, Duration>,
    pods_not_ready: BTreeMap<String, Duration>,
}

impl Story {
    async fn tell(&mut self, cluster: &DemoCluster) -> anyhow::Result<()> {
        let Options { nodes, kill, .. } = self.options;
        self.say(
            Tone::Step,
            "start",
            &format!("{nodes} nodes in 3 zones, each with its agent; 3 aggregators; one stand-in API server"),
            json!({ "nodes": nodes }),
        );
        self.form(cluster).await?;
        let victims: Vec<_> = cluster.nodes.iter().rev().take(kill.into()).collect();
        let names: Vec<_> = victims.iter().map(|node| node.name.to_string()).collect();
        for victim in &victims {
            victim.die().await?;
            self.told.killed.insert(victim.key);
        }
        self.told.killed_at = Some(Instant::now());
        let text = format!("{} dies without a word", names.join(", "));
        self.say(Tone::Bad, "killed", &text, json!({ "killed": names }));
        let times = self.watch_deaths(&names).await?;
        for victim in &victims {
            victim.come_back().await?;
        }
        let text = format!(
            "{} is switched on again; its kubelet alone may say Ready",
            names.join(", ")
        );
        self.say(Tone::Step, "returned", &text, json!({ "nodes": names }));
        self.watch_return(&names).await?;
        self.sum_up(cluster, &names, &times)
    }

    /// Waits until every member knows every other, a leader may write, and the paths are known.
    async fn form(&mut self, cluster: &DemoCluster) -> anyhow::Result<()> {
        let limit = FORM_TIMEOUT + FORM_TIMEOUT_PER_NODE * self.options.nodes.into();
        let deadline = Instant::now() + limit;
        let members = cluster.names.len() - 1;
        let mut formed = false;
        loop {
            self.drain();
            let mut known = Vec::new();
            for aggregator in &cluster.aggregators {
                let view = aggregator.member.view().await;
                known.push(view.iter().filter(|m| m.state == "alive").count());
            }
            let known = known.into_iter().min().unwrap_or_default();
            if known == members && !formed {
                formed = true;
                let text = format!(
                    "the mesh has formed: {} members know each other",
                    members + 1
                );
                self.say(
                    Tone::Good,
                    "formed",
                    &text,
                    json!({ "members": members + 1 }),
                );
            }
            if formed && self.leader_has_watched(cluster) && ready_to_judge(cluster).await {
                let text = "the leader has watched for one detection interval, and paths to all kubelets are known";
                self.say(Tone::Step, "ready", text, json!({}));
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!(
                    "the mesh was not ready in {limit:?}: an aggregator sees {known} of {members} members"
                );
            }
            let text = format!("forming: {known} of {members} members seen");
            self.teller.live(self.began.elapsed(), &text);
            sleep(LOOK_EVERY).await;
        }
    }

    /// Whether someone leads, for as long as a new leader holds back its first write.
    fn leader_has_watched(&mut self, cluster: &DemoCluster) -> bool {
        if !cluster.aggregators.iter().any(Aggregator::leads) {
            self.told.led_since = None;
            return false;
        }
        let since = *self.told.led_since.get_or_insert_with(Instant::now);
        since.elapsed() >= Profile::Default.detection()
    }

    async fn watch_deaths(&mut self, names: &[String]) -> anyhow::Result<Times> {
        let mut times = Times::default();
        let deadline = Instant::now() + WRITE_TIMEOUT;
        while times.pods_not_ready.len() < names.len() {
            self.drain();
            let picture = Picture::take(&self.client).await?;
            for name in names {
                let since = self.since_kill();
                if picture.status(name) == "Unknown" && !times.unknown.contains_key(name) {
                    times.unknown.insert(name.clone(), since);
                    let text = format!("{name} is Ready=Unknown, {}", picture.reason(name));
                    let fields = json!({ "node": name, "reason": picture.reason(name), "since_kill_ms": millis(since) });
                    self.say(Tone::Good, "unknown", &text, fields);
                }
                if times.unknown.contains_key(name)
                    && !picture.serving.contains(name)
                    && !times.pods_not_ready.contains_key(name)
                {
                    times.pods_not_ready.insert(name.clone(), since);
                    let text =
                        format!("the pods of {name} are NotReady: they leave their Services");
                    let fields = json!({ "node": name, "since_kill_ms": millis(since) });
                    self.say(Tone::Good, "pods_not_ready", &text, fields);
                }
            }
            if Instant::now() > deadline {
                bail!(
                    "{} of {} killed nodes were written within {WRITE_TIMEOUT:?}",
                    times.unknown.len(),
                    names.len()
                );
            }
            let text = format!("{} since the kill", shown(self.since_kill()));
            self.teller.live(self.began.elapsed(), &text);
            sleep(LOOK_EVERY).await;
        }
        Ok(times)
    }

    async fn watch_return(&mut self, names: &[String]) -> anyhow::Result<()> {
        let deadline = Instant::now() + RETURN_TIMEOUT;
        let mut back = BTreeSet::new();
        while back.len() < names.len() {
            self.drain();
            let picture = Picture::take(&self.client).await?;
            for name in names {
                let is_back = picture.status(name) == "True" && picture.serving.contains(name);
                if is_back && back.insert(name.clone()) {
                    let text = format!(
                        "{name} is Ready again, and so are its pods, by its kubelet's word"
                    );
                    self.say(Tone::Good, "ready_again", &text, json!({ "node": name }));
                }
            }
            if Instant::now() > deadline {
                bail!("the killed nodes did not come back within {RETURN_TIMEOUT:?}");
            }
            self.teller
                .live(self.began.elapsed(), "waiting for the kubelet");
            sleep(LOOK_EVERY).await;
        }
        Ok(())
    }

    fn sum_up(&self, cluster: &DemoCluster, names: &[String], times: &Times) -> anyhow::Result<()> {
        let written = observer::written(&cluster.standin);
        let killed: BTreeSet<_> = names.iter().cloned().collect();
        let false_writes = written.difference(&killed).count();
        let in_order = |times: &BTreeMap<String, Duration>| -> Vec<_> {
            names
                .iter()
                .filter_map(|name| times.get(name))
                .map(|d| millis(*d))
                .collect()
        };
        let (unknown, pods) = (in_order(&times.unknown), in_order(&times.pods_not_ready));
        let object = json!({
            "event": "summary",
            "nodes": self.options.nodes,
            "killed": names,
            "unknown_ms": unknown,
            "pods_not_ready_ms": pods,
            "false_writes": false_writes,
        });
        let slowest =
            |ms: &[u64]| shown(Duration::from_millis(ms.iter().copied().max().unwrap_or(0)));
        let text = format!(
            "{} of {} nodes died. Ready=Unknown after {}, pods NotReady after {}; nodes wrongly written: {false_writes}.\n\
             Kubernetes' own detection takes 40 to 60 s for the same, with a Lease written every 10 s by every node.\n",
            names.len(),
            self.options.nodes,
            slowest(&unknown),
            slowest(&pods),
        );
        self.teller.summary(&text, &object);
        if false_writes > 0 || written != killed {
            bail!("nodes written: {written:?}; nodes killed: {killed:?}");
        }
        Ok(())
    }

    /// Tells what the members noticed since the last look.
    fn drain(&mut self) {
        while let Ok(Noticed { by, what }) = self.noticed.try_recv() {
            match what {
                What::Leads(true) if self.told.leaders.insert(by) => {
                    let text = format!("{} holds the Lease: it may write", self.name(by));
                    self.say(
                        Tone::Step,
                        "leader",
                        &text,
                        json!({ "leader": self.name(by) }),
                    );
                }
                _ if self.told.killed_at.is_none() => {}
                What::Mesh(event) => self.on_mesh(by, &event),
                What::Round {
                    subjects,
                    verifiers,
                } => self.on_round(&subjects, verifiers),
                What::Decided(decision) => {
                    let node = decision.node.name.to_string();
                    let key = self
                        .names
                        .iter()
                        .find(|(_, name)| **name == node)
                        .map(|(key, _)| *key);
                    let is_news = key.is_some_and(|key| self.told.decided.insert(key));
                    if decision.verdict == Verdict::Unreachable && is_news {
                        let text = format!(
                            "verdict: {node} is {}. {}",
                            decision.verdict,
                            decision.evidence.summary()
                        );
                        let fields = json!({ "node": node, "verdict": decision.verdict.as_str(), "rule": decision.rule.as_str(), "since_kill_ms": millis(self.since_kill()) });
                        self.say(Tone::Bad, "verdict", &text, fields);
                    }
                }
                What::Leads(_) => {}
            }
        }
    }

    fn on_mesh(&mut self, by: MemberKey, event: &MeshEvent) {
        match event {
            MeshEvent::Missed { subject, .. }
                if self.is_victim(*subject) && self.told.missed.insert(*subject) =>
            {
                let (observer, node) = (self.name(by), self.name(*subject));
                let text = format!("first missed probe: {observer} gets no answer from {node}");
                let fields = json!({ "node": node, "observer": observer, "since_kill_ms": millis(self.since_kill()) });
                self.say(Tone::Step, "missed_probe", &text, fields);
            }
            MeshEvent::Claim(claim) if matches!(claim.finding, Finding::Missed { .. }) => {
                let subject = claim.subject;
                if !self.is_victim(subject) {
                    return;
                }
                let accusers = self.told.accusers.entry(subject).or_default();
                if accusers.insert(claim.accuser) && accusers.len() <= ACCUSERS_TOLD {
                    let count = accusers.len();
                    let (accuser, node) = (self.name(claim.accuser), self.name(subject));
                    let text = format!("accusation {count}: {accuser} misses {node}");
                    let fields = json!({ "node": node, "accuser": accuser, "since_kill_ms": millis(self.since_kill()) });
                    self.say(Tone::Step, "accusation", &text, fields);
                }
            }
            _ => {}
        }
    }

    fn on_round(&mut self, subjects: &[MemberKey], verifiers: usize) {
        let victims: Vec<_> = subjects
            .iter()
            .copied()
            .filter(|key| self.is_victim(*key))
            .collect();
        for subject in victims {
            let rounds = self.told.verified.entry(subject).or_default();
            *rounds += 1;
            if *rounds <= 2 {
                let (round, node) = (*rounds, self.name(subject));
                let text = format!(
                    "verification round {round}: {verifiers} members try the agent and the kubelet of {node}"
                );
                let fields = json!({ "node": node, "verifiers": verifiers, "since_kill_ms": millis(self.since_kill()) });
                self.say(Tone::Step, "verification", &text, fields);
            }
        }
    }

    fn is_victim(&self, key: MemberKey) -> bool {
        self.told.killed.contains(&key)
    }

    fn name(&self, key: MemberKey) -> String {
        self.names
            .get(&key)
            .cloned()
            .unwrap_or_else(|| format!("{key:?}"))
    }

    fn since_kill(&self) -> Duration {
        self.told
            .killed_at
            .map_or(Duration::ZERO, |at| at.elapsed())
    }

    fn say(&self, tone: Tone, event: &str, text: &str, fields: serde_json::Value) {
        self.teller
            .tell(self.began.elapsed(), tone, event, text, fields);
    }
}

/// Whether every aggregator's judge holds every node alive and knows a path to each.
async fn ready_to_judge(cluster: &DemoCluster) -> bool {
    let alive = Verdict::Alive.as_str();
    for aggregator in &cluster.aggregators {
        let judged = aggregator.judged().await;
        let nodes = judged.map(|judged| judged.nodes).unwrap_or_default();
        let seen = nodes.iter().filter(|node| node.verdict == alive).count();
        if seen.min(aggregator.paths().await) < cluster.nodes.len() {
            return false;
        }
    }
    true
}

fn shown(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}
